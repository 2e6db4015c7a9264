//! A host that exists only in memory: storage, network, machines and guests whose steps can be held up, failed and counted.
//!
//! A [`World`] outlives the nodes that work on it, as a real host does.
#![allow(dead_code, unreachable_pub, reason = "shared by several test binaries, each of which uses a part")]

mod machine;
mod network;
mod storage;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandbox::{
    CreateSandbox, GuestFiles, Node, NodeConfig, NodeTag, OsRandomness, Parts, PullEvent, PullRequest,
};
use sandbox::{SandboxInfo, SystemClock};
use tokio::sync::watch;

/// A step that a test can hold up or fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    CreateDevice,
    AcquireSlot,
    OpenTap,
    Boot,
    /// The machine runs, but nobody knows it yet.
    Booted,
    Health,
    Init,
    Kill,
    CloseDevice,
    ReleaseSlot,
    Import,
    ListDevices,
}

impl Step {
    /// The steps of a creation, in order.
    pub const CREATION: [Self; 7] = [
        Self::CreateDevice,
        Self::AcquireSlot,
        Self::OpenTap,
        Self::Boot,
        Self::Booted,
        Self::Health,
        Self::Init,
    ];
    /// The steps of a removal, in order.
    pub const REMOVAL: [Self; 3] = [Self::Kill, Self::CloseDevice, Self::ReleaseSlot];
}

/// Holds a step up.
#[derive(Debug)]
pub struct Gate {
    entered: watch::Sender<u32>,
    open: watch::Sender<bool>,
}

impl Gate {
    /// Waits until something is held up.
    pub async fn entered(&self) {
        let mut entered = self.entered.subscribe();
        within("a step is reached", entered.wait_for(|count| *count > 0)).await.unwrap();
    }

    /// Lets everything through from now on.
    pub fn open(&self) {
        self.open.send_replace(true);
    }
}

/// What exists on the host.
#[derive(Debug)]
pub struct World {
    /// Devices by id, with their lowers.
    pub devices: Mutex<BTreeMap<String, Vec<PathBuf>>>,
    /// What is wrong with a device.
    pub damages: Mutex<BTreeMap<String, String>>,
    /// Whether the storage daemon answers.
    pub storage_answers: AtomicBool,
    /// Machines that were stopped by a full disk.
    pub paused: Mutex<BTreeSet<String>>,
    /// Whether the disk is full: a machine that is resumed stops again.
    pub disk_full: AtomicBool,
    /// How often a machine was resumed.
    pub resumes: AtomicU32,
    /// Indices of slots.
    pub slots: Mutex<BTreeSet<u32>>,
    /// Running machines by id.
    pub machines: Mutex<BTreeMap<String, Arc<machine::Vm>>>,
    /// Ids of every sandbox a device was asked for.
    pub seen: Mutex<Vec<String>>,
    /// What each collection was told to keep.
    pub kept_layers: Mutex<Vec<Vec<PathBuf>>>,
    /// Whether guests answer.
    pub guests_answer: AtomicBool,
    /// Most creations that were between device and init at a time.
    pub most_creating: AtomicU32,
    creating: AtomicU32,
    gates: Mutex<HashMap<Step, Arc<Gate>>>,
    failures: Mutex<HashMap<Step, u32>>,
    subnet: [u8; 2],
}

impl World {
    pub fn new() -> Arc<Self> {
        // Addresses of guests are loopback addresses that no other test uses at the same time.
        static WORLDS: AtomicU32 = AtomicU32::new(1);
        let number = WORLDS.fetch_add(1, Ordering::Relaxed).to_le_bytes()[0];
        let process = u8::try_from(std::process::id() % 100).unwrap();
        Arc::new(Self {
            devices: Mutex::default(),
            damages: Mutex::default(),
            storage_answers: AtomicBool::new(true),
            paused: Mutex::default(),
            disk_full: AtomicBool::new(false),
            resumes: AtomicU32::new(0),
            slots: Mutex::default(),
            machines: Mutex::default(),
            seen: Mutex::default(),
            kept_layers: Mutex::default(),
            guests_answer: AtomicBool::new(true),
            most_creating: AtomicU32::new(0),
            creating: AtomicU32::new(0),
            gates: Mutex::default(),
            failures: Mutex::default(),
            subnet: [100 + process, number],
        })
    }

    /// Holds `step` up until the gate is opened.
    pub fn hold(&self, step: Step) -> Arc<Gate> {
        let gate = Arc::new(Gate { entered: watch::channel(0).0, open: watch::channel(false).0 });
        self.gates.lock().unwrap().insert(step, gate.clone());
        gate
    }

    /// No step is held up any more.
    pub fn release_all(&self) {
        for (_, gate) in self.gates.lock().unwrap().drain() {
            gate.open();
        }
    }

    /// Lets `step` fail the next `times`.
    pub fn fail(&self, step: Step, times: u32) {
        self.failures.lock().unwrap().insert(step, times);
    }

    async fn pass(&self, step: Step) -> Result<(), String> {
        let gate = self.gates.lock().unwrap().get(&step).cloned();
        if let Some(gate) = gate {
            let mut open = gate.open.subscribe();
            gate.entered.send_modify(|count| *count += 1);
            open.wait_for(|open| *open).await.map_err(|error| error.to_string())?;
        }
        let mut failures = self.failures.lock().unwrap();
        match failures.get_mut(&step) {
            Some(left) if *left > 0 => {
                *left -= 1;
                Err(format!("{step:?} was made to fail"))
            }
            _ => Ok(()),
        }
    }

    /// Parts of a node on this host.
    pub fn parts(self: &Arc<Self>) -> Parts {
        Parts {
            storage: Arc::new(storage::FakeStorage(self.clone())),
            vmm: Arc::new(machine::FakeVmm(self.clone())),
            machines: Arc::new(machine::FakeVmm(self.clone())),
            networks: Arc::new(network::FakeNetworks::new(self.clone())),
            guest: Arc::new(machine::FakeGuest(self.clone())),
            clock: Arc::new(SystemClock),
            randomness: Arc::new(OsRandomness),
        }
    }

    /// A node on this host, with its state in `directory`.
    pub async fn node(self: &Arc<Self>, config: NodeConfig) -> Node {
        Node::start(config, self.parts()).await.unwrap()
    }

    /// Id of the sandbox whose device was asked for last.
    pub fn last_seen(&self) -> String {
        self.seen.lock().unwrap().last().unwrap().clone()
    }

    /// Ends a machine as a crash would.
    pub fn crash_machine(&self, id: &str) {
        let machine = self.machines.lock().unwrap().remove(id).unwrap();
        machine.alive.send_replace(false);
    }

    /// What is on the host, in words; empty when there is nothing.
    pub fn leftovers(&self, config: &NodeConfig) -> Vec<String> {
        let mut found = Vec::new();
        found.extend(self.devices.lock().unwrap().keys().map(|id| format!("device {id}")));
        found.extend(self.slots.lock().unwrap().iter().map(|index| format!("slot {index}")));
        found.extend(self.machines.lock().unwrap().keys().map(|id| format!("machine {id}")));
        for directory in [config.data_dir.join("sandboxes"), config.runtime_dir.join("sandboxes")] {
            let entries = std::fs::read_dir(&directory).unwrap();
            found.extend(entries.map(|entry| format!("file {}", entry.unwrap().path().display())));
        }
        found
    }

    /// Waits until there is nothing left.
    pub async fn settles(&self, config: &NodeConfig) {
        within("the host is clean", async {
            while !self.leftovers(config).is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

/// A configuration with everything under `directory`.
pub fn config(directory: &Path) -> NodeConfig {
    let mut config = NodeConfig::new(
        directory.join("data"),
        directory.join("run"),
        GuestFiles::in_directory(&directory.join("assets")),
    );
    config.node_tag = NodeTag::parse("tst");
    config.create_deadline = Duration::from_secs(20);
    config.disk_check_interval = Duration::from_millis(20);
    config
}

/// Pulls a template; its layers are named after the source.
pub async fn pull(node: &Node, source: &str, name: &str) -> Result<sandbox::TemplateRecord, String> {
    let request = PullRequest {
        source: source.to_owned(),
        name: name.to_owned(),
        virtual_size_bytes: 0,
        vcpus: None,
        memory_mib: None,
        credentials: None,
    };
    let mut events = node.pull_template(request).map_err(|error| error.to_string())?;
    loop {
        match within("a pull event", events.recv()).await.unwrap() {
            PullEvent::Progress(_) => {}
            PullEvent::Done(template) => return Ok(*template),
            PullEvent::Failed(error) => return Err(error.to_string()),
        }
    }
}

/// A request for a sandbox of template `base`.
pub fn request(timeout: Duration) -> CreateSandbox {
    CreateSandbox { template: "base".to_owned(), timeout, metadata: BTreeMap::new(), env: BTreeMap::new() }
}

/// A running sandbox of template `base`.
pub async fn create(node: &Node) -> SandboxInfo {
    within("a sandbox is made", node.create(request(Duration::from_secs(600)))).await.unwrap()
}

/// A test that waits for something that never comes fails, and says for what.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(20), future).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long: {what}"),
    }
}
