//! A machine outlives the process that started it, and another process takes it over.
//!
//! Without arguments this is the test; with `boot DIRECTORY` it is that first process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::Path;
use std::process::Command;

use vmm::{Machine, MachineRecord, MachineStatus, Vmm, VmmError, wait_for_console};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match arguments.get(1).map(String::as_str) {
        Some("boot") => runtime.block_on(boot(Path::new(&arguments[2]))),
        // What cargo passes on to test programs (filters, --nocapture) means nothing to this one.
        _ => {
            runtime.block_on(adopt());
            println!("test a_machine_outlives_its_process_and_is_adopted ... ok");
        }
    }
}

/// Boots a machine that talks for ever, prints its record and ends.
async fn boot(directory: &Path) {
    let mut config = common::Place::new().config("talk");
    for disk in &mut config.disks {
        disk.path = directory.join(disk.path.file_name().unwrap());
    }
    config.runtime_directory = directory.join("run");
    config.console_log = directory.join("console.log");
    let machine = common::qemu().boot(config).await.unwrap();
    wait_for_console(&*machine, "test-init: beat 3", common::BOOT_LIMIT).await.unwrap();
    println!("RECORD {}", serde_json::to_string(machine.record()).unwrap());
}

async fn adopt() {
    let place = common::Place::new();
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).arg("boot").arg(place.directory.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let record = said.lines().find_map(|line| line.strip_prefix("RECORD ")).unwrap();
    let record: MachineRecord = serde_json::from_str(record).unwrap();
    let guard = KillOnPanic(record.process_id);

    let qemu = common::qemu();
    // A process that ended before it could store the record is no problem either.
    let found = qemu.find("test", &place.runtime(), &place.console_log()).unwrap();
    assert_eq!(found.as_ref(), Some(&record));

    let stranger = MachineRecord { process_start_ticks: record.process_start_ticks + 1, ..record.clone() };
    // In a directory of its own, because what is gone is cleaned up.
    let elsewhere = common::Place::new();
    let stranger = MachineRecord { runtime_directory: elsewhere.runtime(), ..stranger };
    assert!(
        matches!(qemu.adopt(&stranger).await, Err(VmmError::Gone { .. })),
        "another process with the same id"
    );

    let machine = qemu.adopt(&record).await.unwrap();
    assert_eq!(machine.status().await, MachineStatus::Running);
    assert!(machine.statistics().unwrap().resident_bytes > 50 << 20);
    let beat = last_beat(&*machine);
    // The guest went on while nobody read its console, and is heard again now.
    wait_for_console(&*machine, &format!("test-init: beat {}", beat + 30), common::BOOT_LIMIT).await.unwrap();

    machine.kill().await.unwrap();
    assert_eq!(machine.status().await, MachineStatus::Exited);
    place.assert_nothing_left();
    assert!(matches!(qemu.adopt(&record).await, Err(VmmError::Gone { .. })));
    assert_eq!(qemu.find("test", &place.runtime(), &place.console_log()).unwrap(), None);
    std::mem::forget(guard);
}

fn last_beat(machine: &dyn Machine) -> u32 {
    let tail = machine.console_tail(10_000);
    let beats = tail.lines().filter_map(|line| line.trim().strip_prefix("test-init: beat ")?.parse().ok());
    beats.max().unwrap()
}

/// A failed assertion must not leave a machine running on the developer's host.
struct KillOnPanic(u32);

impl Drop for KillOnPanic {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-9", &self.0.to_string()]).status();
    }
}
