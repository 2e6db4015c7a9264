//! The empty ext4 file system under the first layer.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

/// Fixed, so that the empty file system is the same bytes each time.
const UUID: &str = "61656e76-6578-4434-8000-000000000001";

/// No journal: a layer is only written here, in one go, and a virtual machine's crash consistency is that of its
/// snapshot. `meta_bg` instead of `resize_inode`: a file system that can grow without the megabytes that inode would
/// reserve in every image. Checksums on everything, which also lets unused block groups stay unwritten. Together an
/// empty file system of 64 GiB is less than 400 KiB of blocks.
const FEATURES: &str = "none,filetype,ext_attr,dir_index,dir_nlink,extent,64bit,flex_bg,meta_bg,sparse_super,large_file,\
     huge_file,extra_isize,metadata_csum";

/// The disk is a fresh sparse one, so inode tables need not be zeroed now, nor later by the kernel in the guest. The
/// last option is known from e2fsprogs 1.47 on.
const PREZEROED: &str = ",assume_storage_prezeroed=1";

/// Makes the file system on `device`; the error says what failed.
pub(super) async fn make(mke2fs: &Path, device: &Path, timeout: Duration) -> Result<(), String> {
    let options = format!("nodiscard,lazy_itable_init=1,root_owner=0:0,hash_seed={UUID}");
    if run(mke2fs, device, &format!("{options}{PREZEROED}"), timeout).await.is_ok() {
        return Ok(());
    }
    run(mke2fs, device, &options, timeout).await
}

async fn run(mke2fs: &Path, device: &Path, options: &str, timeout: Duration) -> Result<(), String> {
    let mut command = Command::new(mke2fs);
    command
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-i", "16384", "-m", "0", "-U", UUID])
        .args(["-O", FEATURES, "-E", options])
        .arg(device)
        // The host's defaults must not leak into images.
        .env("MKE2FS_CONFIG", "/dev/null")
        .env("E2FSPROGS_FAKE_TIME", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let output = match tokio::time::timeout(timeout, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => {
            return Err(format!("{} cannot be run ({error}); install e2fsprogs", mke2fs.display()));
        }
        Err(_) => return Err(format!("{} took longer than {} s", mke2fs.display(), timeout.as_secs())),
    };
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(format!("{} failed ({}): {}", mke2fs.display(), output.status, message.trim()))
}
