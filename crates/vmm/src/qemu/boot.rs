//! Starting a machine, and leaving nothing of one that does not start.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::Qemu;
use super::command_line::{self, Inherited, RuntimeFiles};
use super::machine::QemuMachine;
use super::qmp::{Qmp, QmpError};
use super::spawn::{self, Launch};
use crate::console::{self, ConsoleReader};
use crate::process::MonitorProcess;
use crate::{MachineConfig, VmmError};

/// How long the last output of a monitor that has ended may take to reach the log.
const CONSOLE_LIMIT: Duration = Duration::from_secs(1);

/// Answer to `query-status`.
#[derive(Debug, Deserialize)]
pub(super) struct RunState {
    /// QEMU's `RunState`, for example `running`, `paused` or `prelaunch`.
    pub(super) status: String,
}

/// Files and process of a machine that is not yet anyone's. Dropped before it is kept, it ends the process and removes the
/// files: a boot that fails, or whose future is dropped, leaves nothing.
#[derive(Debug)]
struct Unfinished {
    files: RuntimeFiles,
    process: Option<MonitorProcess>,
    kept: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if let Some(process) = &self.process
            && let Err(error) = process.kill()
        {
            tracing::warn!(pid = process.id(), %error, "cannot end a monitor that did not start");
        }
        self.files.remove();
    }
}

impl Qemu {
    pub(super) async fn start(&self, mut config: MachineConfig) -> Result<QemuMachine, VmmError> {
        check_files(&config).await?;
        let files = RuntimeFiles::of(&config.runtime_directory);
        let listener = self.listen(&files)?;
        let mut unfinished = Unfinished { files: files.clone(), process: None, kept: false };
        let console = self.prepare_console(&config, &files)?;
        let log_start = std::fs::metadata(&config.console_log).map_or(0, |metadata| metadata.len());
        let launch = self.launch(&mut config, &files, listener)?;
        // Forking a large process takes milliseconds.
        let spawned = tokio::task::spawn_blocking(move || Started(spawn::spawn(launch))).await;
        let spawned = spawned.map_err(|error| VmmError::io("start QEMU")(std::io::Error::other(error)))?;
        let process_id =
            spawned.take().map_err(VmmError::io(format!("start {}", self.report.program.display())))?;
        let process = MonitorProcess::of_child(process_id).map_err(VmmError::io("watch QEMU's process"))?;
        let process = unfinished.process.insert(process);
        let failed = |reason: String| {
            // Only what this start said, should the log hold more.
            let length = std::fs::metadata(&config.console_log).map_or(0, |metadata| metadata.len());
            let new_bytes = usize::try_from(length.saturating_sub(log_start)).unwrap_or(usize::MAX);
            let console = console::tail(&config.console_log, new_bytes.min(VmmError::CONSOLE_BYTES));
            VmmError::Start { id: config.id.clone(), reason, console }
        };
        let reason = tokio::select! {
            started = wait_until_running(&files.qmp_socket) => match started {
                Ok(()) => None,
                // The connection breaks because the process ends, and its ending says more.
                Err(error) => match tokio::time::timeout(CONSOLE_LIMIT, process.ended()).await {
                    Ok(ending) => Some(ending.to_string()),
                    Err(_) => Some(error.to_string()),
                },
            },
            ending = process.ended() => Some(ending.to_string()),
            () = tokio::time::sleep(self.config.start_timeout) => {
                Some(format!("its processors did not run within {} s", self.config.start_timeout.as_secs()))
            }
        };
        if let Some(reason) = reason {
            let _ = process.kill();
            console.finished(CONSOLE_LIMIT).await;
            return Err(failed(reason));
        }
        let record = self.record(&config.id, process, &config.runtime_directory, &config.console_log);
        unfinished.kept = true;
        match unfinished.process.take() {
            Some(process) => Ok(QemuMachine::new(record, process, Some(console))),
            None => Err(VmmError::Gone { id: record.id }),
        }
    }

    fn listen(&self, files: &RuntimeFiles) -> Result<UnixListener, VmmError> {
        UnixListener::bind(&files.qmp_socket).map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => VmmError::Config(format!(
                "{} exists: another machine uses this runtime directory, or one that ended was not removed",
                files.qmp_socket.display()
            )),
            _ => VmmError::io(format!("listen on {}", files.qmp_socket.display()))(error),
        })
    }

    fn prepare_console(
        &self,
        config: &MachineConfig,
        files: &RuntimeFiles,
    ) -> Result<ConsoleReader, VmmError> {
        let context =
            || VmmError::io(format!("prepare the console in {}", config.runtime_directory.display()));
        ConsoleReader::create_pipe(&files.console_pipe).map_err(context())?;
        if let Some(user) = self.config.run_as {
            // QEMU makes the process id file itself, but would not be allowed to.
            File::options()
                .create(true)
                .write(true)
                .truncate(true)
                .mode(0o600)
                .open(&files.pid_file)
                .map_err(context())?;
            for path in [&files.console_pipe, &files.pid_file, &config.runtime_directory] {
                chown(path, Some(user.uid), Some(user.gid)).map_err(context())?;
            }
        }
        ConsoleReader::start(&files.console_pipe, &config.console_log, self.config.console_limit_bytes)
            .map_err(context())
    }

    fn launch(
        &self,
        config: &mut MachineConfig,
        files: &RuntimeFiles,
        listener: UnixListener,
    ) -> Result<Launch, VmmError> {
        let tap = config.network.as_ref().map(|network| network.tap.as_raw_fd());
        let inherited = Inherited { qmp_listener: listener.as_raw_fd(), tap };
        let arguments = command_line::arguments(config, self.host(), files, inherited)?;
        let messages =
            ConsoleReader::open_writer(&files.console_pipe).map_err(VmmError::io("open the console pipe"))?;
        let mut descriptors = vec![OwnedFd::from(listener)];
        descriptors.extend(config.network.take().map(|network| network.tap));
        Ok(Launch {
            program: self.report.program.clone(),
            arguments,
            inherited: descriptors,
            messages,
            network_namespace: self.network_namespace.clone(),
            run_as: self.config.run_as,
        })
    }
}

/// A process that was started for a future that may no longer be there to take it.
struct Started(std::io::Result<u32>);

impl Started {
    fn take(mut self) -> std::io::Result<u32> {
        std::mem::replace(&mut self.0, Err(std::io::Error::other("taken")))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Inside the runtime still, so that the process is reaped as well.
        if let Ok(process_id) = self.0
            && let Ok(process) = MonitorProcess::of_child(process_id)
        {
            let _ = process.kill();
        }
    }
}

async fn wait_until_running(socket: &Path) -> Result<(), QmpError> {
    let mut qmp = Qmp::connect(socket).await?;
    let state: RunState = qmp.execute("query-status", None).await?;
    match state.status.as_str() {
        "running" => Ok(()),
        other => Err(QmpError::Protocol(format!("the machine is in state {other}"))),
    }
}

/// QEMU's own message about a missing file comes after others and names its option; this one says what is missing.
async fn check_files(config: &MachineConfig) -> Result<(), VmmError> {
    let disks =
        config.disks.iter().enumerate().map(|(index, disk)| (format!("disk {index}"), disk.path.as_path()));
    let others = [
        ("kernel".to_owned(), config.kernel.as_path()),
        ("initramfs".to_owned(), config.initramfs.as_path()),
    ];
    for (what, path) in others.into_iter().chain(disks) {
        if let Err(error) = tokio::fs::metadata(path).await {
            return Err(VmmError::Config(format!(
                "{what} of machine {}: {}: {error}",
                config.id,
                path.display()
            )));
        }
    }
    Ok(())
}

/// The process that wrote the process id file, if it runs and is the QEMU of this directory.
pub(super) fn find_by_pid_file(files: &RuntimeFiles) -> Result<Option<MonitorProcess>, VmmError> {
    let context = || VmmError::io(format!("look for a machine by {}", files.pid_file.display()));
    let text = match std::fs::read_to_string(&files.pid_file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(context()(error)),
    };
    let Ok(process_id) = text.trim().parse() else { return Ok(None) };
    let Some(process) = MonitorProcess::find(process_id, None).map_err(context())? else { return Ok(None) };
    // The id may since have been given to another process, but not to one with this argument.
    let command_line = std::fs::read(format!("/proc/{process_id}/cmdline")).unwrap_or_default();
    let expected = files.pid_file.as_os_str().as_encoded_bytes();
    let is_ours = command_line.split(|&byte| byte == 0).any(|argument| argument == expected);
    Ok((is_ours && !process.has_ended()).then_some(process))
}
