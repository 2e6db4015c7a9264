//! Output, subscribers, keep-alive, ends.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::Stream;
use crate::server::{Server, eventually, is_alive, shell};

fn connect(server: &Server, pid: u32) -> Stream {
    server.stream_request("Connect", &json!({"process": {"pid": pid}})).open()
}

fn kill(server: &Server, pid: u32) {
    server
        .succeed("process.Process/SendSignal", &json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}));
}

#[test]
fn no_output_is_lost_at_the_end() {
    let server = Server::ready();
    let expected: usize = (1..=1_000_000).map(|number: u32| number.to_string().len() + 1).sum();
    for _ in 0..15 {
        let finished = server.run("seq 1 1000000");
        assert_eq!(finished.stdout.len(), expected);
        assert!(finished.text().ends_with("\n999999\n1000000\n"));
    }
}

#[test]
fn both_pipes_are_whole_when_the_process_ends() {
    let server = Server::ready();
    for _ in 0..20 {
        let finished = server.run("head -c 300000 /dev/zero >&2 & head -c 300000 /dev/zero; wait");
        assert_eq!((finished.stdout.len(), finished.stderr.len()), (300_000, 300_000));
    }
}

#[test]
fn bytes_are_passed_and_never_decoded() {
    let server = Server::ready();
    let finished = server.run("python3 -c 'print(\"你\" * 50000, end=\"\")'");
    assert_eq!(finished.text(), "你".repeat(50_000));
    let finished = server.run("head -c 8191 /dev/zero | tr '\\0' a; printf '\\xe4'");
    assert_eq!((finished.stdout.len(), finished.stdout.last()), (8192, Some(&0xe4)));
}

#[test]
fn events_are_at_most_32_kib() {
    let server = Server::ready();
    let mut stream = server.start_shell("head -c 2000000 /dev/zero");
    while let Some(event) = stream.next() {
        assert!(event.data.and_then(|data| data.stdout).is_none_or(|bytes| bytes.len() <= 32 << 10));
    }
}

#[test]
fn a_child_left_behind_does_not_hold_the_end_up() {
    let server = Server::ready();
    let start = Instant::now();
    let finished = server.run("(while :; do echo noise; sleep 0.05; done) & echo $!; sleep 100 & echo $!");
    assert_eq!(finished.exit_code(), 0);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    // They may go on writing: nobody reads, but their pipe is not broken.
    let children: Vec<u32> = finished.text().lines().filter_map(|line| line.parse().ok()).collect();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(children.iter().map(|child| is_alive(*child)).collect::<Vec<_>>(), [true, true]);
    server.run(&format!("kill {} {}", children[0], children[1]));
}

#[test]
fn output_of_the_last_moment_of_a_child_is_still_delivered() {
    let server = Server::ready();
    let finished = server.run("(sleep 0.1; echo late) & echo early");
    assert_eq!(finished.text(), "early\nlate\n");
}

#[test]
fn a_dead_subscriber_does_not_block_a_new_one() {
    let server = Server::ready();
    let mut stalled = server.start_shell("yes");
    let pid = stalled.started();
    // Nobody reads `stalled` any more, and its socket stays open. Its buffers fill up and the process stops.
    std::thread::sleep(Duration::from_millis(1500));
    let start = Instant::now();
    let mut fresh = connect(&server, pid);
    assert_eq!(fresh.started(), pid);
    let mut bytes = 0;
    while bytes < 5_000_000 {
        bytes += fresh.next().unwrap().data.unwrap().stdout.unwrap().len();
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    kill(&server, pid);
    // The stalled stream has no gap: it ends with an error.
    while stalled.next().is_some() {}
    assert!(matches!(stalled.finish_error().as_deref(), Some("resource_exhausted")));
}

#[test]
fn the_only_subscriber_gets_everything_however_slow_it_is() {
    let server = Server::ready();
    let mut stream = server.start_shell("seq 1 400000");
    let expected: usize = (1..=400_000).map(|number: u32| number.to_string().len() + 1).sum();
    stream.started();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(stream.finish().stdout.len(), expected);
}

#[test]
fn memory_stays_bounded_when_nobody_reads() {
    let server = Server::ready();
    let before = server.resident_kib();
    let mut streams: Vec<Stream> = (0..4).map(|_| server.start_shell("yes")).collect();
    let pids: Vec<u32> = streams.iter_mut().map(Stream::started).collect();
    std::thread::sleep(Duration::from_secs(2));
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 4 * 1024, "four stalled streams hold {grown} KiB");
    pids.into_iter().for_each(|pid| kill(&server, pid));
}

#[test]
fn a_client_that_goes_in_the_middle_of_output_leaves_the_process_running() {
    let server = Server::ready();
    let mut stream = server.start_shell("yes");
    let pid = stream.started();
    drop(stream);
    let mut again = connect(&server, pid);
    assert_eq!(again.started(), pid);
    assert!(again.next().unwrap().data.is_some());
    kill(&server, pid);
}

#[test]
fn subscribers_get_the_same_output_and_the_same_end() {
    let server = Server::ready();
    let mut first =
        server.stream_request("Start", &json!({"process": {"cmd": "/bin/cat"}, "tag": "cat"})).open();
    let pid = first.started();
    let mut second = server.stream_request("Connect", &json!({"process": {"tag": "cat"}})).open();
    assert_eq!(second.started(), pid);
    server
        .succeed("process.Process/SendInput", &json!({"process": {"pid": pid}, "input": {"stdin": "aGkK"}}));
    server.succeed("process.Process/CloseStdin", &json!({"process": {"pid": pid}}));
    for stream in [first, second] {
        let finished = stream.finish();
        assert_eq!((finished.text(), finished.exit_code()), ("hi\n", 0));
    }
}

#[test]
fn who_connects_late_still_gets_the_end() {
    let server = Server::ready();
    let finished = server.run("exit 5");
    let late = connect(&server, finished.pid).finish();
    assert_eq!((late.pid, late.exit_code()), (finished.pid, 5));
    let unknown = server.stream_request("Connect", &json!({"process": {"pid": 4_000_000}})).open().finish();
    assert_eq!(unknown.error_code(), "not_found");
}

#[test]
fn the_deadline_of_a_connection_ends_only_the_connection() {
    let server = Server::ready();
    let mut first = server.start_shell("sleep 1; echo done");
    let pid = first.started();
    let request = server.stream_request("Connect", &json!({"process": {"pid": pid}}));
    let second = request.header("Connect-Timeout-Ms", "300").open().finish();
    assert_eq!(second.error_code(), "deadline_exceeded");
    let finished = first.finish();
    assert_eq!((finished.text(), finished.exit_code()), ("done\n", 0));
}

#[test]
fn a_silent_command_is_kept_alive_and_ends_cleanly() {
    let server = Server::ready();
    let request = server.stream_request("Start", &shell("sleep 2.5; echo x; sleep 0.7"));
    let mut stream = request.header("Keepalive-Ping-Interval", "1").open();
    stream.started();
    let mut kinds = Vec::new();
    while let Some(event) = stream.next() {
        kinds.push(if event.keepalive.is_some() {
            "keepalive"
        } else if event.data.is_some() {
            "data"
        } else {
            "end"
        });
    }
    // The interval starts again after the output.
    assert_eq!(kinds, ["keepalive", "keepalive", "data", "end"]);
}

#[test]
fn a_kill_in_the_middle_of_output_ends_the_stream_in_order() {
    let server = Server::ready();
    let mut stream = server.start_shell("yes");
    let pid = stream.started();
    let reader = std::thread::spawn(move || stream.finish());
    std::thread::sleep(Duration::from_millis(300));
    kill(&server, pid);
    let finished = reader.join().unwrap();
    assert_eq!(finished.exit_code(), -1);
    assert!(finished.error.is_none());
}

#[test]
fn a_process_number_that_is_used_again_means_the_new_process() {
    let server = Server::start_with(&["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    assert_eq!(server.request("POST", "/init").json(&json!({"defaultUser": "root"})).send().status, 204);
    let first = server.run("exit 9");
    let mut second = None;
    eventually("the number comes again", || {
        let number = first.pid - 1;
        // The helper thread of the daemon and the shell's own children take numbers too, so this may need repeating.
        server.run(&format!("echo {number} > /proc/sys/kernel/ns_last_pid"));
        let mut stream = server.start_shell("sleep 100");
        let pid = stream.started();
        second = Some(stream);
        if pid != first.pid {
            kill(&server, pid);
        }
        pid == first.pid
    });
    let mut connected = connect(&server, first.pid);
    assert_eq!(connected.started(), first.pid);
    kill(&server, first.pid);
    assert_eq!(connected.finish().exit_code(), -1, "the end of the first process was given");
    assert_eq!(connect(&server, first.pid).finish().exit_code(), -1);
}
