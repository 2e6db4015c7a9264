//! What a command finds in its environment, and the paths its name stands for.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;

use protocol::connect::{Code, RpcError};

use crate::accounts::User;
use crate::daemon::Daemon;

const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const TERMINAL_DEFAULT: &str = "xterm-256color";
/// The shell that clients ask for by this path, whatever the image has.
const USUAL_SHELL: &str = "/bin/bash";
/// What stands in for it, best first. The last one is on the tools disk and needs nothing of the image.
const SHELLS: [&str; 5] =
    [USUAL_SHELL, "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/agentenv/bin/sh"];

/// The variables of a command: those of the user, then the sandbox', then those that say which sandbox it is, then the
/// command's own; later ones win.
pub(super) fn variables(
    daemon: &Daemon,
    user: &User,
    own: &BTreeMap<String, String>,
    on_terminal: bool,
) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut set = |name: &str, value: &str| drop(all.insert(name.to_owned(), value.to_owned()));
    set("PATH", PATH_DEFAULT);
    set("HOME", &user.home.to_string_lossy());
    set("USER", &user.name);
    set("LOGNAME", &user.name);
    set("SHELL", &user.shell);
    if on_terminal {
        set("TERM", TERMINAL_DEFAULT);
    }
    daemon.control().environment.iter().for_each(|(name, value)| set(name, value));
    daemon.sandbox_variables().iter().for_each(|(name, value)| set(name, value));
    own.iter().for_each(|(name, value)| set(name, value));
    all
}

/// The variables in the form the kernel takes.
pub(super) fn to_c_strings(variables: &BTreeMap<String, String>) -> Result<Vec<CString>, RpcError> {
    let one = |(name, value): (&String, &String)| {
        if name.is_empty() || name.contains('=') {
            return Err(RpcError::new(
                Code::InvalidArgument,
                format!("{name:?} cannot be the name of a variable"),
            ));
        }
        c_string(format!("{name}={value}"), "an environment variable")
    };
    variables.iter().map(one).collect()
}

/// A string without NUL bytes.
pub(super) fn c_string(text: String, what: &str) -> Result<CString, RpcError> {
    CString::new(text).map_err(|_| RpcError::new(Code::InvalidArgument, format!("{what} has a NUL byte")))
}

/// The paths a command stands for, and whether the program is to see the one that was found as its name.
pub(super) fn candidates(command: &str, path: &str) -> Result<(Vec<CString>, bool), RpcError> {
    let paths: Vec<String> = match command {
        "" => return Err(RpcError::new(Code::InvalidArgument, "no command is given")),
        USUAL_SHELL => SHELLS.map(str::to_owned).to_vec(),
        _ if command.contains('/') => vec![command.to_owned()],
        // An empty entry of PATH is the working directory.
        _ => path
            .split(':')
            .map(|directory| Path::new(directory).join(command).to_string_lossy().into())
            .collect(),
    };
    let paths: Result<_, _> = paths.into_iter().map(|path| c_string(path, "the command")).collect();
    Ok((paths?, command == USUAL_SHELL))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate_texts(command: &str) -> Vec<String> {
        let (paths, _) = candidates(command, "/a:/b").unwrap();
        paths.into_iter().map(|path| path.into_string().unwrap()).collect()
    }

    #[test]
    fn names_are_searched_and_paths_are_not() {
        assert_eq!(candidate_texts("ls"), ["/a/ls", "/b/ls"]);
        assert_eq!(candidate_texts("./ls"), ["./ls"]);
        assert_eq!(candidate_texts("/bin/ls"), ["/bin/ls"]);
        assert!(candidates("", "/a").is_err());
        assert!(candidates("a\0b", "/a").is_err());
    }

    #[test]
    fn another_shell_stands_in_for_bash_under_its_own_name() {
        assert_eq!(candidate_texts("/bin/bash").last().unwrap(), "/agentenv/bin/sh");
        assert!(candidates("/bin/bash", "").unwrap().1);
        assert!(!candidates("/bin/sh", "").unwrap().1);
    }

    #[test]
    fn variables_that_the_kernel_cannot_take_are_refused() {
        let one = |name: &str, value: &str| to_c_strings(&BTreeMap::from([(name.into(), value.into())]));
        assert_eq!(one("A", "b=c").unwrap(), [c"A=b=c".to_owned()]);
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0")] {
            assert_eq!(one(name, value).unwrap_err().code, Code::InvalidArgument);
        }
    }
}
