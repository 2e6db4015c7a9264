//! Boots the guest kernel and initramfs with a plain QEMU command line, as one would by hand, and prints how many
//! milliseconds pass until the first line of init. This is the yardstick for the time a sandbox takes to start.
//!
//! ```text
//! cargo run -p vmm --example boot_by_hand -- ASSETS_DIRECTORY [RUNS] [VCPUS] [MEMORY_MIB]
//! ```

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use vmm::qemu::{Accelerator, QemuConfig, QemuReport};

const FIRST_LINE: &str = "aenv-init:";
const LIMIT: Duration = Duration::from_secs(120);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u32| arguments.get(index).map_or(Ok(default), |text| text.parse());
    let directory =
        arguments.first().ok_or("usage: boot_by_hand ASSETS_DIRECTORY [RUNS] [VCPUS] [MEMORY_MIB]")?;
    let assets = assets::Assets::open(Path::new(directory))?;
    let host = QemuReport::detect(&QemuConfig::default())?;
    for _ in 0..number(1, 1)? {
        println!("{}", boot(&assets, &host, number(2, 2)?, number(3, 512)?)?.as_millis());
    }
    Ok(())
}

fn boot(
    assets: &assets::Assets,
    host: &QemuReport,
    vcpus: u32,
    memory_mib: u32,
) -> Result<Duration, Box<dyn Error>> {
    let mut append = "console=ttyS0 quiet panic=-1 cryptomgr.notests=1 random.trust_cpu=on".to_owned();
    if let Some(khz) = host.tsc_khz {
        append.push_str(&format!(" tsc_early_khz={khz} tsc=reliable"));
    }
    let (accelerator, processor) = match host.accelerator {
        Accelerator::Kvm => ("kvm", "host"),
        Accelerator::Tcg => ("tcg,thread=multi", "max"),
    };
    let started = Instant::now();
    let mut qemu = Command::new(&host.program)
        .args(["-M", "microvm,acpi=on", "-bios", "qboot.rom", "-accel", accelerator, "-cpu", processor])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"])
        .args(["-m", &memory_mib.to_string(), "-smp", &vcpus.to_string(), "-append", &append])
        .arg("-kernel")
        .arg(&assets.kernel)
        .arg("-initrd")
        .arg(&assets.initramfs)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let console = BufReader::new(qemu.stdout.take().ok_or("no console")?);
    let (sender, receiver) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        for line in console.lines().map_while(Result::ok) {
            if line.contains(FIRST_LINE) {
                // The receiver may have given up waiting.
                let _ = sender.send(started.elapsed());
                break;
            }
            said.push_str(&line);
            said.push('\n');
        }
        said
    });
    let elapsed = receiver.recv_timeout(LIMIT);
    qemu.kill()?;
    qemu.wait()?;
    let said = reader.join().unwrap_or_default();
    elapsed.map_err(|_| format!("the guest did not say {FIRST_LINE:?}; it said:\n{said}").into())
}
