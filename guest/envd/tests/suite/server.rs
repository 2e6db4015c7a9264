//! A daemon of its own for each test.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::client::{Answer, Request, Stream};

/// Uid and gid of the account `user` in the daemon's passwd file.
pub(crate) const USER_ID: u32 = 12_345;
/// A supplementary group of that account.
pub(crate) const EXTRA_GROUP_ID: u32 = 23_456;

/// A running daemon; ended and cleaned up when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) directory: tempfile::TempDir,
}

fn spawn(wrapper: &[&str], root: &Path) -> (Child, SocketAddr) {
    let mut words: Vec<&str> = wrapper.to_vec();
    words.push(env!("CARGO_BIN_EXE_aenv-envd"));
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(["--listen", "127.0.0.1:0", "--keep-clock"]).stdout(Stdio::piped());
    for name in ["etc", "markers", "memory"] {
        command.arg(format!("--{name}")).arg(root.join(name));
    }
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
    (child, address)
}

impl Server {
    /// A daemon that has not heard from a node.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same, started through another program.
    pub(crate) fn start_with(wrapper: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755)).unwrap();
        let home = root.join("home");
        let etc = root.join("etc");
        std::fs::create_dir(&etc).unwrap();
        std::fs::create_dir(&home).unwrap();
        chown(&home, Some(USER_ID), Some(USER_ID)).unwrap();
        let passwd =
            format!("root:x:0:0::/root:/bin/bash\nuser:x:{USER_ID}:{USER_ID}::{}:/bin/sh\n", home.display());
        std::fs::write(etc.join("passwd"), passwd).unwrap();
        let group = format!("root:x:0:\nuser:x:{USER_ID}:\nextra:x:{EXTRA_GROUP_ID}:other,user\n");
        std::fs::write(etc.join("group"), group).unwrap();
        std::fs::write(root.join("memory"), "").unwrap();
        let (child, address) = spawn(wrapper, root);
        Self { child, address, directory }
    }

    /// Ends the daemon as a crash would, and starts it again as the first process of a guest does.
    pub(crate) fn crash_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.child, self.address) = spawn(&[], self.directory.path());
    }

    /// A daemon that was initialised without a token.
    pub(crate) fn ready() -> Self {
        let server = Self::start();
        let answer = server.request("POST", "/init").json(&json!({})).send();
        assert_eq!(answer.status, 204, "{answer:?}");
        server
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The path as text.
    pub(crate) fn text_path(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn request(&self, method: &str, target: &str) -> Request {
        Request::new(self.address, method, target)
    }

    /// A unary call of a service; the status and the message of the answer.
    pub(crate) fn call(&self, method: &str, message: &Value) -> (u16, Value) {
        let answer = self.request("POST", &format!("/{method}")).json(message).send();
        (answer.status, answer.to_json())
    }

    /// A unary call that must succeed.
    pub(crate) fn succeed(&self, method: &str, message: &Value) -> Value {
        let (status, message) = self.call(method, message);
        assert_eq!(status, 200, "{message}");
        message
    }

    /// A unary call that must fail: status, code, message.
    pub(crate) fn fail(&self, method: &str, message: &Value) -> (u16, String, String) {
        let (status, message) = self.call(method, message);
        assert_ne!(status, 200, "{message}");
        let text = |key: &str| message[key].as_str().unwrap_or_else(|| panic!("{message}")).to_owned();
        (status, text("code"), text("message"))
    }

    /// A request that starts a stream.
    pub(crate) fn stream_request(&self, method: &str, message: &Value) -> Request {
        self.request("POST", &format!("/process.Process/{method}")).envelope(message)
    }

    /// Starts a shell command as the usual client does.
    pub(crate) fn start_shell(&self, script: &str) -> Stream {
        self.stream_request("Start", &shell(script)).open()
    }

    /// Runs a shell command to its end.
    pub(crate) fn run(&self, script: &str) -> Finished {
        self.start_shell(script).finish()
    }

    pub(crate) fn get_file(&self, path: &str) -> Answer {
        self.request("GET", &format!("/files?path={}", encode(path))).send()
    }

    /// Kilobytes of memory the daemon holds.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().split(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What came out of a command.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    pub(crate) pid: u32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// The end event, when there was one.
    pub(crate) end: Option<Value>,
    /// The error that ended the stream, when there was one.
    pub(crate) error: Option<Value>,
}

impl Finished {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    pub(crate) fn exit_code(&self) -> i64 {
        self.end.as_ref().unwrap_or_else(|| panic!("{self:?}"))["exitCode"].as_i64().unwrap()
    }

    pub(crate) fn error_code(&self) -> &str {
        self.error.as_ref().unwrap_or_else(|| panic!("{self:?}"))["code"].as_str().unwrap()
    }
}

/// The message that starts a shell command without input.
pub(crate) fn shell(script: &str) -> Value {
    json!({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", script]}, "stdin": false})
}

/// Percent-encodes a query value.
pub(crate) fn encode(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Whether a process exists, zombies not counted.
pub(crate) fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(')').next().and_then(|rest| rest.trim().chars().next()).is_some_and(|state| state != 'Z')
}

/// Waits until something becomes true.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed().as_secs() < 10, "not within 10 s: {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
