//! The guest kernel and its modules, taken from Debian's cloud kernel package.

use std::collections::HashMap;
use std::path::Path;

use crate::AssetsError;
use crate::elf::Elf;
use crate::package;

/// Modules the guest cannot do without, in the order in which they are wanted; what they depend on is put before them.
///
/// The cloud kernel has ext4, PCI and the serial console built in, but no virtio device beyond the PCI transport.
/// `qemu_fw_cfg` and `virtio_balloon` are there so that a running guest can be told and relieved of things later.
const MODULES: [&str; 7] =
    ["virtio_mmio", "virtio_blk", "virtio_net", "virtio-rng", "virtio_balloon", "qemu_fw_cfg", "overlay"];

/// Where the x86 boot protocol keeps what is needed here (Linux `Documentation/arch/x86/boot.rst`).
mod boot_header {
    pub(super) const SETUP_SECTORS: usize = 0x1f1;
    pub(super) const MAGIC: usize = 0x202;
    pub(super) const PAYLOAD_OFFSET: usize = 0x248;
    pub(super) const PAYLOAD_LENGTH: usize = 0x24c;
}

/// A kernel that boots without unpacking itself, and the modules that go with it.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// As `uname -r` shows it.
    pub(crate) release: String,
    /// ELF image. Booting it instead of the bzImage saves the guest 0.65 s of unpacking under emulation.
    pub(crate) vmlinux: Vec<u8>,
    /// In the order in which they must be inserted.
    pub(crate) modules: Vec<Module>,
}

/// One kernel module.
#[derive(Debug)]
pub(crate) struct Module {
    /// File name without its ending.
    pub(crate) name: String,
    /// The unpacked `.ko`.
    pub(crate) content: Vec<u8>,
}

impl Kernel {
    /// Reads kernel and modules out of the package.
    pub(crate) fn from_package(path: &Path) -> Result<Self, AssetsError> {
        let what = format!("kernel package {}", path.display());
        let mut image = None;
        let mut compressed = HashMap::new();
        let wanted = |path: &str| path.starts_with("boot/vmlinuz-") || module_name(path).is_some();
        package::read_files(path, &wanted, &mut |path, content| match module_name(&path) {
            Some(name) => {
                compressed.insert(name.to_owned(), (path, content));
            }
            None => image = path.strip_prefix("boot/vmlinuz-").map(|release| (release.to_owned(), content)),
        })?;
        let (release, image) =
            image.ok_or_else(|| AssetsError::format(&what, "it holds no boot/vmlinuz-*"))?;
        Ok(Self { vmlinux: extract_vmlinux(&image)?, modules: load_order(&what, &compressed)?, release })
    }
}

/// Name of a module from its path in the package.
fn module_name(path: &str) -> Option<&str> {
    let path = path.strip_prefix("lib/modules/").or_else(|| path.strip_prefix("usr/lib/modules/"))?;
    let file = path.rsplit('/').next()?;
    file.strip_suffix(".ko.xz").or_else(|| file.strip_suffix(".ko.zst")).or_else(|| file.strip_suffix(".ko"))
}

/// Takes the ELF kernel out of a bzImage whose payload is one zstd frame.
fn extract_vmlinux(image: &[u8]) -> Result<Vec<u8>, AssetsError> {
    let refused = |reason: &str| AssetsError::format("the kernel image", reason);
    let field = |offset: usize| {
        let bytes = image.get(offset..offset + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(|bytes| u32::from_le_bytes(bytes) as usize)
    };
    if image.get(boot_header::MAGIC..boot_header::MAGIC + 4) != Some(b"HdrS") {
        return Err(refused("it has no x86 boot header"));
    }
    let payload = (|| {
        let sectors = usize::from(*image.get(boot_header::SETUP_SECTORS)?);
        let start = ((sectors + 1) * 512).checked_add(field(boot_header::PAYLOAD_OFFSET)?)?;
        image.get(start..start.checked_add(field(boot_header::PAYLOAD_LENGTH)?)?)
    })()
    .ok_or_else(|| refused("its payload lies outside the file"))?;
    let vmlinux = package::unpack_zstd_frame("the payload of the kernel image", payload)?;
    match Elf::parse(&vmlinux) {
        Some(_) => Ok(vmlinux),
        None => Err(refused("its payload is not an x86-64 ELF file")),
    }
}

/// Unpacks the wanted modules with what they depend on. The package has no `modules.dep` (it is made on installation), so
/// the modules' own `depends=` is followed.
fn load_order(
    what: &str,
    compressed: &HashMap<String, (String, Vec<u8>)>,
) -> Result<Vec<Module>, AssetsError> {
    // File names and `depends=` differ in `-` and `_`.
    let by_name: HashMap<String, &str> =
        compressed.keys().map(|name| (name.replace('-', "_"), name.as_str())).collect();
    let mut order: Vec<Module> = Vec::new();
    // Depth first with an explicit stack: a module is placed when it is met for the second time, after what it needs.
    let mut pending: Vec<(String, Option<Vec<u8>>)> =
        MODULES.iter().rev().map(|name| ((*name).to_owned(), None)).collect();
    let mut met = std::collections::HashSet::new();
    while let Some((wanted, unpacked)) = pending.pop() {
        if let Some(content) = unpacked {
            order.push(Module { name: wanted, content });
            continue;
        }
        let name = *by_name
            .get(&wanted.replace('-', "_"))
            .ok_or_else(|| AssetsError::format(what, format!("it lacks the module {wanted}")))?;
        if !met.insert(name) {
            continue;
        }
        let (path, bytes) = &compressed[name];
        let content = match path.rsplit('.').next() {
            Some("xz") => package::unpack_xz(path, bytes)?,
            Some("zst") => package::unpack_zstd_frame(path, bytes)?,
            _ => bytes.clone(),
        };
        let elf = Elf::parse(&content).ok_or_else(|| AssetsError::format(path, "not an x86-64 ELF file"))?;
        let depends = elf.module_information("depends").unwrap_or_default();
        let depends: Vec<_> = depends.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        pending.push((name.to_owned(), Some(content)));
        pending.extend(depends.into_iter().map(|name| (name, None)));
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_names_come_from_any_packing() {
        for path in [
            "lib/modules/6.12/kernel/a/x_y.ko.xz",
            "usr/lib/modules/6.12/kernel/x_y.ko",
            "lib/modules/6/x_y.ko.zst",
        ] {
            assert_eq!(module_name(path), Some("x_y"));
        }
        assert_eq!(module_name("boot/System.map"), None);
        assert_eq!(module_name("lib/modules/6.12/modules.order"), None);
    }

    #[test]
    fn images_without_a_sound_boot_header_are_refused() {
        assert!(extract_vmlinux(&[0; 100]).is_err());
        let mut image = vec![0; 0x300];
        image[boot_header::MAGIC..boot_header::MAGIC + 4].copy_from_slice(b"HdrS");
        image[boot_header::PAYLOAD_OFFSET..boot_header::PAYLOAD_OFFSET + 4]
            .copy_from_slice(&u32::MAX.to_le_bytes());
        let reason = extract_vmlinux(&image).expect_err("refused").to_string();
        assert!(reason.contains("outside the file"), "{reason}");
    }

    #[test]
    fn a_missing_module_is_named() {
        let reason = load_order("package", &HashMap::new()).expect_err("refused").to_string();
        assert!(reason.contains("virtio_mmio"), "{reason}");
    }
}
