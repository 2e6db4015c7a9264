//! Command line.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use protocol::envd::{ENVD_PORT, ENVD_VERSION};

const USAGE: &str =
    "usage: aenv-envd [--listen ADDRESS:PORT] [--etc DIRECTORY] [--markers DIRECTORY] [--keep-clock]
                 [--memory FILE]

  --listen     where to serve (default 0.0.0.0:49983)
  --etc        where passwd and group are (default /etc)
  --markers    where files that tell programs about the sandbox are written (default /run/e2b)
  --keep-clock never set the system clock
  --memory     where the token and the like are kept for the next start (default nowhere)";

/// How the daemon runs. The defaults are right inside a guest; tests change them.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) listen: SocketAddr,
    pub(crate) etc: PathBuf,
    pub(crate) markers: PathBuf,
    pub(crate) keep_clock: bool,
    pub(crate) memory: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, ENVD_PORT)),
            etc: PathBuf::from("/etc"),
            markers: PathBuf::from("/run/e2b"),
            keep_clock: false,
            memory: None,
        }
    }
}

impl Options {
    /// Reads the arguments after the program name. `None` when they only asked for information.
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = OsString>) -> Result<Option<Self>, String> {
        let mut options = Self::default();
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let mut value =
                |name: &str| arguments.next().ok_or_else(|| format!("{name} needs a value\n{USAGE}"));
            match argument.to_str() {
                Some("--listen") => {
                    let text = value("--listen")?;
                    options.listen = text
                        .to_str()
                        .and_then(|text| text.parse().ok())
                        .ok_or_else(|| format!("--listen {} is not ADDRESS:PORT", text.display()))?;
                }
                Some("--etc") => options.etc = value("--etc")?.into(),
                Some("--markers") => options.markers = value("--markers")?.into(),
                Some("--memory") => options.memory = Some(value("--memory")?.into()),
                Some("--keep-clock") => options.keep_clock = true,
                Some("--version") => {
                    println!("{ENVD_VERSION}");
                    return Ok(None);
                }
                Some("--help") => {
                    println!("{USAGE}");
                    return Ok(None);
                }
                _ => return Err(format!("unknown argument {}\n{USAGE}", argument.display())),
            }
        }
        Ok(Some(options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Option<Options>, String> {
        Options::from_arguments(arguments.iter().map(OsString::from))
    }

    #[test]
    fn arguments_replace_defaults() {
        let options = parse(&["--listen", "127.0.0.1:1", "--etc", "/x", "--keep-clock"]).unwrap().unwrap();
        assert_eq!(options.listen, "127.0.0.1:1".parse().unwrap());
        assert_eq!(options.etc, PathBuf::from("/x"));
        assert!(options.keep_clock);
        assert_eq!(parse(&[]).unwrap().unwrap().listen.port(), 49983);
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for wrong in [&["--listen"][..], &["--listen", "x"], &["--what"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
