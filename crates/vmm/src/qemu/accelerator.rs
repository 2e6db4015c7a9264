//! Hardware virtualization or emulation.

use std::fs::{self, File};
use std::path::PathBuf;

use crate::VmmError;

/// What the configuration asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AcceleratorChoice {
    /// KVM when it is real, else emulation.
    #[default]
    Auto,
    /// KVM, or an error.
    Kvm,
    /// Emulation.
    Tcg,
}

/// How guest code is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// By the processor, through `/dev/kvm`.
    Kvm,
    /// By QEMU's translator: the same guests, several times slower.
    Tcg,
}

/// Where to look for KVM.
#[derive(Debug, Clone)]
pub struct KvmProbe {
    /// `/proc/cpuinfo`.
    pub cpuinfo: PathBuf,
    /// Exists when KVM's back end is PVM: `/sys/module/kvm_pvm`.
    pub pvm_module: PathBuf,
    /// `/dev/kvm`.
    pub device: PathBuf,
}

impl Default for KvmProbe {
    fn default() -> Self {
        Self {
            cpuinfo: "/proc/cpuinfo".into(),
            pvm_module: "/sys/module/kvm_pvm".into(),
            device: "/dev/kvm".into(),
        }
    }
}

impl KvmProbe {
    /// Whether KVM runs ordinary guests at hardware speed; if not, why.
    ///
    /// That the device exists proves nothing. With the PVM back end it opens, and machines can be made, but a stock guest
    /// kernel needs over a minute to boot and QEMU aborts. Such a host shows neither `svm` nor `vmx`.
    pub fn check(&self) -> Result<(), String> {
        if self.pvm_module.exists() {
            return Err(format!(
                "{} is KVM without hardware virtualization (kvm_pvm)",
                self.device.display()
            ));
        }
        let cpuinfo = fs::read_to_string(&self.cpuinfo)
            .map_err(|error| format!("cannot read {}: {error}", self.cpuinfo.display()))?;
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        if !flags.split_whitespace().any(|flag| matches!(flag, "svm" | "vmx")) {
            return Err("the processor offers no hardware virtualization (neither svm nor vmx)".to_owned());
        }
        match File::options().read(true).write(true).open(&self.device) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("cannot open {}: {error}", self.device.display())),
        }
    }
}

/// Decides, and says why.
pub(super) fn choose(choice: AcceleratorChoice, probe: &KvmProbe) -> Result<(Accelerator, String), VmmError> {
    match (choice, probe.check()) {
        (AcceleratorChoice::Tcg, _) => Ok((Accelerator::Tcg, "configured".to_owned())),
        (_, Ok(())) => {
            Ok((Accelerator::Kvm, format!("{} works with this processor", probe.device.display())))
        }
        (AcceleratorChoice::Auto, Err(reason)) => Ok((Accelerator::Tcg, reason)),
        (AcceleratorChoice::Kvm, Err(reason)) => Err(VmmError::Config(format!(
            "KVM was asked for, but {reason}; use accelerator \"auto\" or \"tcg\""
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with these processor flags, with or without PVM and a device.
    fn probe(directory: &tempfile::TempDir, flags: &str, pvm: bool, device: bool) -> KvmProbe {
        let path = |name: &str| directory.path().join(name);
        fs::write(path("cpuinfo"), format!("processor\t: 0\nflags\t\t: fpu {flags} sse2\n"))
            .expect("written");
        if pvm {
            fs::create_dir(path("kvm_pvm")).expect("created");
        }
        if device {
            fs::write(path("kvm"), "").expect("written");
        }
        KvmProbe { cpuinfo: path("cpuinfo"), pvm_module: path("kvm_pvm"), device: path("kvm") }
    }

    fn chosen(
        choice: AcceleratorChoice,
        flags: &str,
        pvm: bool,
        device: bool,
    ) -> Result<(Accelerator, String), String> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        choose(choice, &probe(&directory, flags, pvm, device)).map_err(|error| error.to_string())
    }

    #[test]
    fn hardware_kvm_is_used() {
        for flags in ["svm", "vmx"] {
            assert_eq!(
                chosen(AcceleratorChoice::Auto, flags, false, true).expect("chosen").0,
                Accelerator::Kvm
            );
        }
    }

    #[test]
    fn a_device_without_hardware_behind_it_is_not_used() {
        let (accelerator, reason) = chosen(AcceleratorChoice::Auto, "svm_lock", false, true).expect("chosen");
        assert_eq!(accelerator, Accelerator::Tcg);
        assert!(reason.contains("neither svm nor vmx"), "{reason}");
    }

    #[test]
    fn pvm_is_not_used_even_when_flags_say_otherwise() {
        let (accelerator, reason) = chosen(AcceleratorChoice::Auto, "svm", true, true).expect("chosen");
        assert_eq!(accelerator, Accelerator::Tcg);
        assert!(reason.contains("kvm_pvm"), "{reason}");
    }

    #[test]
    fn hardware_without_the_device_is_not_used() {
        let (accelerator, reason) = chosen(AcceleratorChoice::Auto, "vmx", false, false).expect("chosen");
        assert_eq!(accelerator, Accelerator::Tcg);
        assert!(reason.contains("cannot open"), "{reason}");
    }

    #[test]
    fn kvm_asked_for_by_name_is_never_replaced_in_silence() {
        let error = chosen(AcceleratorChoice::Kvm, "", false, true).expect_err("refused");
        assert!(error.contains("use accelerator \"auto\""), "{error}");
    }

    #[test]
    fn emulation_asked_for_by_name_is_used_on_any_host() {
        assert_eq!(chosen(AcceleratorChoice::Tcg, "svm", false, true).expect("chosen").0, Accelerator::Tcg);
    }
}
