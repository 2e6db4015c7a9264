//! Copies of directories, as tar streams.

use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use protocol::connect::Code;
use protocol::envd::{self, MakeDirRequest, MakeDirResponse, ProcessConfig, StartRequest};
use tokio::sync::mpsc;

use crate::client::guest::{Guest, code_of};

/// On the tools disk of every guest.
const BUSYBOX: &str = "/agentenv/bin/busybox";
/// Bytes of tar sent at a time, and how many such pieces may wait.
const PIECE_BYTES: usize = 32 * 1024;
const PIECES: usize = 16;
/// What is shown of the complaints of a program.
const MAX_COMPLAINT_BYTES: usize = 2000;

pub(super) async fn send(guest: &Guest, source: &Path, target: &str) -> anyhow::Result<()> {
    let request = MakeDirRequest { path: target.to_owned() };
    match guest.call::<MakeDirResponse>(envd::FILESYSTEM_SERVICE, "MakeDir", &request).await {
        Ok(_) => {}
        Err(error) if code_of(&error) == Some(Code::AlreadyExists) => {}
        Err(error) => return Err(error.context(format!("create {target} in sandbox {}", guest.id()))),
    }
    let (sender, receiver) = mpsc::channel(PIECES);
    let from = source.to_owned();
    let packing = tokio::task::spawn_blocking(move || pack(&from, sender));
    // Without owners: those of this machine mean nothing there.
    let arguments = ["tar", "-x", "-o", "-f", "-", "-C", target];
    let unpacked = run(guest, &arguments, Some(receiver), None).await;
    // When both ends failed, the far one knows why: this one only saw nobody taking what it packed.
    unpacked.with_context(|| format!("unpack in {target} in sandbox {}", guest.id()))?;
    packing.await.context("pack")?.with_context(|| format!("cannot read all of {}", source.display()))
}

pub(super) async fn fetch(guest: &Guest, source: &str, target: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(target).with_context(|| format!("cannot create {}", target.display()))?;
    let (sender, receiver) = mpsc::channel(PIECES);
    let to = target.to_owned();
    let unpacking = tokio::task::spawn_blocking(move || unpack(receiver, &to));
    let arguments = ["tar", "-c", "-f", "-", "-C", source, "."];
    let packed = run(guest, &arguments, None, Some(sender)).await;
    let unpacked = unpacking.await.context("unpack")?;
    unpacked.with_context(|| format!("unpack in {}", target.display()))?;
    packed.with_context(|| format!("pack {source} in sandbox {}", guest.id()))
}

/// Runs one of busybox' programs in the sandbox.
pub(super) async fn busybox(guest: &Guest, arguments: &[&str]) -> anyhow::Result<()> {
    run(guest, arguments, None, None)
        .await
        .with_context(|| format!("{} in sandbox {}", arguments.join(" "), guest.id()))
}

async fn run(
    guest: &Guest,
    arguments: &[&str],
    input: Option<mpsc::Receiver<Vec<u8>>>,
    output: Option<mpsc::Sender<Vec<u8>>>,
) -> anyhow::Result<()> {
    let process = ProcessConfig {
        cmd: BUSYBOX.into(),
        args: arguments.iter().map(|&argument| argument.to_owned()).collect(),
        ..ProcessConfig::default()
    };
    let start = StartRequest { process: Some(process), pty: None, tag: None, stdin: Some(input.is_some()) };
    let (pid, mut events) = guest.start(&start).await?;
    let feeding = input.map(|input| tokio::spawn(feed(guest.clone(), pid, input)));
    let mut complaint = Vec::new();
    let end = loop {
        let event = events.next().await?.ok_or_else(|| anyhow!("the sandbox did not say how it ended"))?;
        if let Some(data) = event.data {
            let room = MAX_COMPLAINT_BYTES - complaint.len();
            let stderr = data.stderr.unwrap_or_default();
            complaint.extend_from_slice(&stderr[..stderr.len().min(room)]);
            if let (Some(bytes), Some(output)) = (data.stdout, &output)
                && output.send(bytes).await.is_err()
            {
                // The reader has ended, with an error that says more than this.
                let _ = guest.signal(pid, envd::Signal::Kill).await;
                bail!("stopped");
            }
        }
        if let Some(end) = event.end {
            break end;
        }
    };
    if let Some(feeding) = feeding {
        feeding.abort();
    }
    if end.exited && end.exit_code == 0 {
        return Ok(());
    }
    bail!("{}: {}", end.status, String::from_utf8_lossy(&complaint).trim())
}

async fn feed(guest: Guest, pid: u32, mut input: mpsc::Receiver<Vec<u8>>) {
    while let Some(piece) = input.recv().await {
        // A program that ended early says why by itself.
        if guest.send_input(pid, piece, false).await.is_err() {
            return;
        }
    }
    let _ = guest.close_input(pid).await;
}

fn pack(source: &Path, sender: mpsc::Sender<Vec<u8>>) -> io::Result<()> {
    let pieces = io::BufWriter::with_capacity(PIECE_BYTES, Pieces(sender));
    let mut archive = tar::Builder::new(pieces);
    archive.follow_symlinks(false);
    archive.append_dir_all(".", source)?;
    archive.into_inner()?.flush()
}

fn unpack(receiver: mpsc::Receiver<Vec<u8>>, target: &Path) -> io::Result<()> {
    let mut pieces = Joined { receiver, piece: Vec::new(), position: 0 };
    // `unpack` keeps everything below `target`, whatever names and links the archive holds.
    tar::Archive::new(&mut pieces).unpack(target)?;
    // The end mark is followed by padding, which the sender must be able to send.
    io::copy(&mut pieces, &mut io::sink()).map(drop)
}

/// The writing end of a channel.
struct Pieces(mpsc::Sender<Vec<u8>>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
        self.0.blocking_send(piece.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(piece.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The reading end of a channel.
struct Joined {
    receiver: mpsc::Receiver<Vec<u8>>,
    piece: Vec<u8>,
    position: usize,
}

impl Read for Joined {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.position == self.piece.len() {
            match self.receiver.blocking_recv() {
                Some(piece) => (self.piece, self.position) = (piece, 0),
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.piece.len() - self.position);
        buffer[..length].copy_from_slice(&self.piece[self.position..self.position + length]);
        self.position += length;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let big: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        std::fs::create_dir_all(from.path().join("a/empty")).unwrap();
        std::fs::write(from.path().join("a/big"), &big).unwrap();
        std::fs::write(from.path().join("run"), "#!").unwrap();
        std::fs::set_permissions(from.path().join("run"), PermissionsExt::from_mode(0o755)).unwrap();
        symlink("a/big", from.path().join("link")).unwrap();
        let (sender, receiver) = mpsc::channel(2);
        let source = from.path().to_owned();
        let packing = std::thread::spawn(move || pack(&source, sender));
        unpack(receiver, to.path()).unwrap();
        packing.join().unwrap().unwrap();
        assert_eq!(std::fs::read(to.path().join("a/big")).unwrap(), big);
        assert!(to.path().join("a/empty").is_dir());
        assert_eq!(std::fs::read_link(to.path().join("link")).unwrap(), Path::new("a/big"));
        assert_eq!(std::fs::metadata(to.path().join("run")).unwrap().permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn an_archive_of_a_sandbox_cannot_leave_the_destination() {
        let outside = tempfile::tempdir().unwrap();
        let to = tempfile::tempdir().unwrap();
        let mut archive = tar::Builder::new(Vec::new());
        let mut link = tar::Header::new_gnu();
        link.set_entry_type(tar::EntryType::Symlink);
        link.set_size(0);
        archive.append_link(&mut link, "out", outside.path()).unwrap();
        let mut file = tar::Header::new_gnu();
        file.set_size(4);
        file.set_mode(0o644);
        archive.append_data(&mut file, "out/evil", &b"evil"[..]).unwrap();
        let bytes = archive.into_inner().unwrap();
        let (sender, receiver) = mpsc::channel(1);
        let sending = std::thread::spawn(move || sender.blocking_send(bytes));
        assert!(unpack(receiver, to.path()).is_err());
        let _ = sending.join();
        assert!(!outside.path().join("evil").exists());
    }
}
