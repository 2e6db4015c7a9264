//! Processes that this crate's tests start and kill; not part of any product.
//!
//! `fuse-keeper ...`, `image-unpack ...`: the roles that the daemon starts. `storaged DATA RUNTIME`: the daemon, until its
//! standard input ends.

use std::io::Read as _;
use std::process::ExitCode;

use blockdev::fuse::keeper::{self, KeeperConfig};
use storaged::Config;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let role = arguments.next();
    if role.as_ref().is_some_and(|role| role == "image-unpack") {
        return image::unpack::child_main();
    }
    let result = match role.as_ref().and_then(|role| role.to_str()) {
        Some("fuse-keeper") => KeeperConfig::from_arguments(arguments)
            .and_then(|config| keeper::run(&config))
            .map_err(|error| error.to_string()),
        Some("storaged") => match (arguments.next(), arguments.next()) {
            (Some(data), Some(runtime)) => serve(data.as_ref(), runtime.as_ref()),
            _ => Err("usage: storaged-role storaged DATA RUNTIME".to_owned()),
        },
        _ => Err("usage: storaged-role fuse-keeper|image-unpack|storaged ...".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("storaged-role: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(data: &std::path::Path, runtime: &std::path::Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let config = Config::new(data, runtime, &[program.into()]);
    let reactor = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    // Not one of the runtime's threads: its end would wait for this one.
    std::thread::spawn(move || {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        drop(end);
    });
    let shutdown = async move { drop(ended.await) };
    reactor.block_on(storaged::run(config, shutdown)).map_err(|error| error.to_string())
}
