//! The state of the daemon.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use protocol::connect::{Code, RpcError};
use serde::{Deserialize, Serialize};

use crate::accounts::{self, User};
use crate::memory::Memory;
use crate::metrics::Meter;
use crate::options::Options;
use crate::process::{ProcessLimits, ProcessTable};

/// User of requests that name none, when the node gave none and the image has it.
const USUAL_USER: &str = "user";

/// Everything requests share.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) options: Options,
    pub(crate) processes: ProcessTable,
    pub(crate) meter: Meter,
    /// `/dev/null`, for commands without standard input.
    pub(crate) null: OwnedFd,
    /// Limits the daemon was started with; commands get them back.
    pub(crate) original_limits: ProcessLimits,
    /// Where `control` outlives this process.
    pub(crate) memory: Option<Memory>,
    control: Mutex<Control>,
}

/// What the node told us.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Control {
    /// Whether there was any `/init`; before that nothing is served.
    pub(crate) initialised: bool,
    pub(crate) token: Option<String>,
    pub(crate) last_timestamp: Option<SystemTime>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) default_user: Option<String>,
    pub(crate) default_workdir: Option<String>,
    pub(crate) sandbox_id: Option<String>,
    pub(crate) template_id: Option<String>,
}

/// Locks a mutex whose data stays consistent whatever panics: every critical section here only replaces whole values.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Daemon {
    pub(crate) fn new(options: Options, original_limits: ProcessLimits) -> io::Result<Self> {
        let null = std::fs::File::open("/dev/null")?.into();
        let memory = options.memory.as_deref().map(Memory::open).transpose()?;
        let control = memory.as_ref().map(Memory::recall).transpose()?.flatten();
        Ok(Self {
            options,
            processes: ProcessTable::default(),
            meter: Meter::default(),
            null,
            original_limits,
            memory,
            control: Mutex::new(control.unwrap_or_default()),
        })
    }

    pub(crate) fn control(&self) -> MutexGuard<'_, Control> {
        lock(&self.control)
    }

    /// The user a request acts for: the one it names, else the default one.
    pub(crate) fn user(&self, requested: Option<&str>) -> Result<User, RpcError> {
        let etc = &self.options.etc;
        let name = match requested.filter(|name| !name.is_empty()) {
            Some(name) => name.to_owned(),
            None => match self.control().default_user.clone() {
                Some(name) => name,
                None if accounts::exists(etc, USUAL_USER) => USUAL_USER.to_owned(),
                None => "root".to_owned(),
            },
        };
        accounts::find_user(etc, &name)
            .ok_or_else(|| RpcError::new(Code::Unauthenticated, format!("invalid username: '{name}'")))
    }

    /// Where relative paths of a user start.
    pub(crate) fn base_directory(&self, user: &User) -> PathBuf {
        let workdir = self.control().default_workdir.clone();
        workdir.filter(|path| path.starts_with('/')).map_or_else(|| user.home.clone(), PathBuf::from)
    }

    /// Variables every command gets, and that `/init` does not override.
    pub(crate) fn sandbox_variables(&self) -> Vec<(&'static str, String)> {
        let control = self.control();
        let mut variables = vec![("E2B_SANDBOX", "true".to_owned())];
        let id = control.sandbox_id.clone().unwrap_or_else(host_name);
        variables.push(("E2B_SANDBOX_ID", id));
        if let Some(template_id) = &control.template_id {
            variables.push(("E2B_TEMPLATE_ID", template_id.clone()));
        }
        variables
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
