//! The initramfs: our init and the modules it inserts. Init makes every other directory it needs itself.

use crate::cpio::Archive;
use crate::kernel::Module;

/// Builds the image. `/init` inserts `/modules/*` in name order, hence the number before each name.
pub(crate) fn build(init: &[u8], modules: &[Module]) -> Vec<u8> {
    let mut archive = Archive::new();
    for directory in ["dev", "proc", "sys", "modules"] {
        archive.directory(directory);
    }
    // The kernel opens it for init before init can mount anything on /dev.
    archive.character_device("dev/console", 5, 1);
    archive.file("init", 0o755, init);
    for (index, module) in modules.iter().enumerate() {
        archive.file(&format!("modules/{index:02}-{}.ko", module.name), 0o644, &module.content);
    }
    archive.finish()
}
