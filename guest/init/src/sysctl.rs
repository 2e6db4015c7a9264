//! Kernel settings that programs in containers and on developer machines rely on.

use std::path::Path;

/// Path below `/proc/sys` and value.
const SETTINGS: [(&str, &str); 6] = [
    // Editors, bundlers and file watchers exhaust the small default.
    ("fs/inotify/max_user_watches", "65536"),
    ("fs/inotify/max_user_instances", "512"),
    // Container runtimes allow both to every user: low ports, and ping without a set-uid program.
    ("net/ipv4/ip_unprivileged_port_start", "0"),
    ("net/ipv4/ping_group_range", "0 2147483647"),
    // Databases and search engines refuse to start with the default.
    ("vm/max_map_count", "262144"),
    // Programs that trace their own children (debuggers, profilers) are the normal case here.
    ("kernel/perf_event_paranoid", "2"),
];

/// Applies them below `proc_sys`. A kernel without one of them is fine.
pub(crate) fn apply(proc_sys: &Path) {
    for (path, value) in SETTINGS {
        let _ = std::fs::write(proc_sys.join(path), value);
    }
}
