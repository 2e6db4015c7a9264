use super::*;

const HOST: Host = Host { accelerator: Accelerator::Tcg, tsc_khz: Some(2_600_000) };
const INHERITED: Inherited = Inherited { qmp_listener: 7, tap: None };

fn config() -> MachineConfig {
    MachineConfig {
        id: "sandbox1".to_owned(),
        vcpus: 2,
        memory_mib: 512,
        kernel: "/assets/vmlinux".into(),
        initramfs: "/assets/initramfs.img".into(),
        kernel_arguments: vec!["agentenv.hostname=sandbox1".to_owned()],
        disks: vec![
            Disk { path: "/assets/tools.img".into(), read_only: true },
            Disk { path: "/run/devices/a,b".into(), read_only: false },
        ],
        network: None,
        runtime_directory: "/run/sandbox1".into(),
        console_log: "/data/console.log".into(),
    }
}

fn line(config: &MachineConfig, host: Host) -> Vec<String> {
    let files = RuntimeFiles::of(&config.runtime_directory);
    let arguments = arguments(config, host, &files, INHERITED).expect("a sound configuration");
    arguments.into_iter().map(|argument| argument.into_string().expect("UTF-8")).collect()
}

fn refusal(change: impl FnOnce(&mut MachineConfig)) -> String {
    let mut config = config();
    change(&mut config);
    let files = RuntimeFiles::of(&config.runtime_directory);
    arguments(&config, HOST, &files, INHERITED).expect_err("refused").to_string()
}

fn value<'a>(line: &'a [String], option: &str) -> &'a str {
    let position = line.iter().position(|argument| argument == option);
    &line[position.unwrap_or_else(|| panic!("no {option} in {line:?}")) + 1]
}

#[test]
fn an_emulated_guest_is_told_its_clock_and_a_hardware_one_is_not() {
    let emulated = line(&config(), HOST);
    assert!(value(&emulated, "-append").contains("tsc_early_khz=2600000 tsc=reliable"));
    let hardware = line(&config(), Host { accelerator: Accelerator::Kvm, ..HOST });
    assert!(!value(&hardware, "-append").contains("tsc"));
    assert_eq!((value(&hardware, "-accel"), value(&hardware, "-cpu")), ("kvm", "host"));
}

#[test]
fn only_writable_disks_bypass_the_page_cache_and_discard() {
    let line = line(&config(), HOST);
    let nodes: Vec<Value> = line
        .iter()
        .filter(|argument| argument.starts_with('{'))
        .map(|argument| serde_json::from_str(argument).expect("JSON"))
        .collect();
    assert_eq!(nodes[0]["read-only"], true);
    assert_eq!(nodes[0]["file"]["cache"]["direct"], false);
    assert_eq!(nodes[1]["read-only"], false);
    assert_eq!(nodes[1]["file"]["cache"]["direct"], true);
    assert_eq!(nodes[1]["file"]["discard"], "unmap");
    // In JSON a comma needs no escape, unlike in QEMU's own option syntax.
    assert_eq!(nodes[1]["file"]["filename"], "/run/devices/a,b");
}

#[test]
fn only_a_full_host_stops_a_machine_at_a_write() {
    let line = line(&config(), HOST);
    let disk = |name: &str| line.iter().find(|argument| argument.contains(name)).expect("a disk");
    assert!(disk("drive=disk1").ends_with(",werror=enospc,rerror=report"));
    assert!(!disk("drive=disk0").contains("werror"));
}

#[test]
fn commas_in_option_paths_are_escaped() {
    let mut config = config();
    config.runtime_directory = "/run/a,b".into();
    assert!(line(&config, HOST).iter().any(|argument| argument.contains("path=/run/a,,b/console.pipe")));
}

#[test]
fn what_is_out_of_bounds_is_refused_with_the_bound() {
    assert!(refusal(|config| config.vcpus = 0).contains("choose 1 to 32"));
    assert!(refusal(|config| config.vcpus = 33).contains("choose 1 to 32"));
    assert!(refusal(|config| config.memory_mib = 63).contains("choose 64 to"));
    assert!(refusal(|config| config.memory_mib = u32::MAX).contains("choose 64 to"));
    assert!(refusal(|config| config.disks = vec![config.disks[0].clone(); 17]).contains("at most 16"));
}

#[test]
fn what_could_be_read_as_other_options_is_refused() {
    assert!(refusal(|config| config.id = "a,process=b".to_owned()).contains("letters, digits"));
    assert!(refusal(|config| config.id = String::new()).contains("letters, digits"));
    assert!(
        refusal(|config| config.kernel_arguments = vec!["a init=/bin/sh".to_owned()])
            .contains("not one word")
    );
    assert!(refusal(|config| config.kernel_arguments = vec!["a".repeat(2048)]).contains("2047"));
    assert!(refusal(|config| config.kernel = "vmlinux".into()).contains("not an absolute path"));
}
