//! A process that is killed at any moment while it makes and removes slots leaves nothing that a sweep does not find.
//!
//! The test starts itself as that process, which a test harness cannot: hence a `main` of its own. Needs root.

#![expect(clippy::unwrap_used, reason = "helpers of a test fail it by panicking")]

use std::fs;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use network::{NetworkConfig, SlotManager};
use rustix::thread::{UnshareFlags, unshare_unsafe};

const CHILD: &str = "NETWORK_CRASH_TEST_PREFIX";
const ROUNDS: u64 = 25;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let Ok(prefix) = std::env::var(CHILD) {
        return runtime.block_on(churn(&prefix));
    }
    // SAFETY: NEWNET does not touch the descriptor table. The whole test plays in this namespace.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
    let prefix = format!("c{:03x}", rand::random_range(0..0x1000));
    let mut left_over = 0;
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(CHILD, &prefix)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(40 + round * 3));
        child.kill().unwrap();
        child.wait().unwrap();
        left_over += runtime.block_on(async {
            let manager = SlotManager::new(config(&prefix)).await.unwrap();
            let swept = manager.sweep().await.unwrap();
            let slot = manager.acquire().await.unwrap();
            manager.release(&slot).await.unwrap();
            swept
        });
        let names: Vec<_> = fs::read_dir("/run/netns")
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with(&prefix))
            .collect();
        assert_eq!(names, Vec::<String>::new(), "round {round}");
        let links = Command::new("ip").args(["-o", "link"]).output().unwrap().stdout;
        let links = String::from_utf8(links).unwrap();
        assert!(!links.contains(&prefix), "round {round}: {links}");
    }
    assert!(left_over > 0, "no kill hit a slot in the making: the test tested nothing");
    println!("{ROUNDS} processes killed, {left_over} slots swept");
}

async fn churn(prefix: &str) {
    let manager = SlotManager::new(config(prefix)).await.unwrap();
    loop {
        let slot = manager.acquire().await.unwrap();
        let _kept = manager.acquire().await.unwrap();
        manager.release(&slot).await.unwrap();
    }
}

fn config(prefix: &str) -> NetworkConfig {
    NetworkConfig {
        name_prefix: prefix.into(),
        slot_range: (Ipv4Addr::new(10, 12, 0, 0), 16),
        denied_networks: network::DEFAULT_DENIED_NETWORKS.to_vec(),
    }
}
