//! Members become files.

use std::fs::File;
use std::io::{self, BufRead, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, linkat, makedev, mkdirat, mknodat, openat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::attributes::{self, Times};
use super::tree::{Parent, Tree, clean, split};
use super::{Outcome, Summary, whiteout};
use crate::tar::{Limits, Member, MemberKind, TarError, TarReader, printable};

/// Why a member, and with it the layer, was not applied.
#[derive(Debug)]
pub(super) enum ApplyError {
    /// The archive is to blame.
    Refused(String),
    /// A system call failed; whether the archive is to blame depends on the error number.
    System(&'static str, Errno),
    Tar(TarError),
    /// Any of the above, with the name of the member it happened at.
    At(String, Box<ApplyError>),
}

impl From<TarError> for ApplyError {
    fn from(error: TarError) -> Self {
        Self::Tar(error)
    }
}

impl ApplyError {
    pub(super) fn at(self, member: &[u8]) -> Self {
        match self {
            already @ (Self::At(..) | Self::Tar(TarError::Malformed { .. })) => already,
            error => Self::At(printable(member), Box::new(error)),
        }
    }

    pub(super) fn into_outcome(self) -> Outcome {
        self.outcome("(end of archive)".to_owned())
    }

    fn outcome(self, member: String) -> Outcome {
        match self {
            Self::At(member, error) => error.outcome(member),
            Self::Refused(reason) => Outcome::Refused { member, reason },
            Self::System(_, Errno::NOSPC) => Outcome::DiskFull { member },
            Self::System(
                what,
                error @ (Errno::IO | Errno::ROFS | Errno::NOMEM | Errno::MFILE | Errno::NFILE),
            ) => Outcome::Failed { reason: format!("{what} for member `{member}`: {error}") },
            Self::System(what, error) => Outcome::Refused { member, reason: format!("{what}: {error}") },
            Self::Tar(TarError::Malformed { member, reason }) => Outcome::Refused { member, reason },
            Self::Tar(TarError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Outcome::Refused { member, reason: "the archive is cut off here".to_owned() }
            }
            Self::Tar(TarError::Io(error)) => {
                Outcome::Failed { reason: format!("reading the archive: {error}") }
            }
        }
    }
}

/// Applies one archive to a tree.
#[derive(Debug)]
pub(super) struct Applier {
    tree: Tree,
    limits: Limits,
    summary: Summary,
}

impl Applier {
    pub(super) fn new(root: OwnedFd, limits: Limits) -> Self {
        Self { tree: Tree::new(root), limits, summary: Summary::default() }
    }

    pub(super) fn into_summary(self) -> Summary {
        self.summary
    }

    /// Applies every member, then sets what must come last on directories.
    pub(super) fn apply(&mut self, archive: &mut TarReader<impl BufRead>) -> Result<(), ApplyError> {
        let mut last = b"(first member)".to_vec();
        loop {
            // A cut-off archive is reported at the last member that was whole.
            let member = archive.next_member().map_err(|error| ApplyError::Tar(error).at(&last))?;
            let Some(member) = member else { break };
            self.member(archive, &member).map_err(|error| error.at(&member.path))?;
            self.summary.members += 1;
            last = member.path;
        }
        attributes::finish_directories(&mut self.tree, &mut self.summary)
    }

    fn member(&mut self, archive: &mut TarReader<impl BufRead>, member: &Member) -> Result<(), ApplyError> {
        let path = clean(&member.path, self.limits.path_components).map_err(ApplyError::Refused)?;
        if path.is_empty() {
            // The root's own entry says how the builder's directory looked; containerd leaves the root alone.
            return match member.kind {
                MemberKind::Directory => Ok(()),
                _ => {
                    Err(ApplyError::Refused("its path names the root, but it is not a directory".to_owned()))
                }
            };
        }
        let (directory, name) = split(&path);
        if whiteout::is_marker(&path) {
            self.summary.whiteouts += 1;
            return whiteout::apply(&mut self.tree, directory, name);
        }
        self.tree.member_time = member.modified;
        let parent = self.tree.parent(directory)?;
        match member.kind {
            MemberKind::File => self.file(archive, member, &parent, name)?,
            MemberKind::Directory => self.directory(member, &parent, &path, name)?,
            MemberKind::HardLink => self.hard_link(member, &parent, name)?,
            MemberKind::Symlink => {
                self.create(&parent, name, || symlinkat(member.link.as_slice(), &parent.fd, name))
                    .map_err(|error| error.describe("making a symbolic link"))?;
                attributes::set_on_name(member, &parent, name, &mut self.summary)?;
            }
            MemberKind::CharacterDevice => self.node(member, &parent, name, FileType::CharacterDevice)?,
            MemberKind::BlockDevice => self.node(member, &parent, name, FileType::BlockDevice)?,
            MemberKind::Fifo => self.node(member, &parent, name, FileType::Fifo)?,
        }
        self.tree.mark_unpacked(&parent, name);
        Ok(())
    }

    /// Runs `make`; when something is in the way, removes it and tries again. Most members are new, so asking
    /// first would cost a system call each.
    fn create<T>(
        &mut self,
        parent: &Parent,
        name: &[u8],
        make: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, CreateError> {
        match make() {
            Err(Errno::EXIST) => {
                whiteout::remove(&mut self.tree, parent, name).map_err(CreateError::Replacing)?;
                make().map_err(CreateError::Making)
            }
            other => other.map_err(CreateError::Making),
        }
    }

    fn file(
        &mut self,
        archive: &mut TarReader<impl BufRead>,
        member: &Member,
        parent: &Parent,
        name: &[u8],
    ) -> Result<(), ApplyError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(member.mode);
        let fd = self
            .create(parent, name, || openat(&parent.fd, name, flags, mode))
            .map_err(|error| error.describe("making a file"))?;
        let mut file = File::from(fd);
        match &member.sparse_runs {
            None => write_data(archive, &mut file, member.stored_bytes)?,
            Some(runs) => {
                file.set_len(member.size).map_err(|error| system("sizing a sparse file", &error))?;
                for run in runs {
                    file.seek(SeekFrom::Start(run.offset))
                        .map_err(|error| system("writing a sparse file", &error))?;
                    write_data(archive, &mut file, run.length)?;
                }
            }
        }
        self.summary.file_bytes += member.stored_bytes;
        attributes::set_on_file(member, parent, &file, &mut self.summary)
    }

    fn directory(
        &mut self,
        member: &Member,
        parent: &Parent,
        path: &[u8],
        name: &[u8],
    ) -> Result<(), ApplyError> {
        let mode = Mode::from_raw_mode(member.mode);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut existed = false;
        match mkdirat(&parent.fd, name, mode) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let stat = statat(&parent.fd, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(|error| ApplyError::System("examining what is in its place", error))?;
                existed = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                if !existed {
                    whiteout::remove(&mut self.tree, parent, name)?;
                    mkdirat(&parent.fd, name, mode)
                        .map_err(|error| ApplyError::System("making a directory", error))?;
                }
            }
            Err(error) => return Err(ApplyError::System("making a directory", error)),
        }
        let fd = openat(&parent.fd, name, flags, Mode::empty())
            .map_err(|error| ApplyError::System("opening a directory", error))?;
        let default_acl = attributes::set_on_directory(member, parent, &fd, existed, &mut self.summary)?;
        let directory = self.tree.remember(path, fd)?;
        if let Some(touched) = self.tree.touched.get_mut(&directory.inode) {
            let Times { accessed, modified } = Times::of(member);
            touched.accessed = accessed;
            touched.modified = modified;
            touched.default_acl = default_acl;
        }
        Ok(())
    }

    fn node(
        &mut self,
        member: &Member,
        parent: &Parent,
        name: &[u8],
        kind: FileType,
    ) -> Result<(), ApplyError> {
        let device = makedev(member.device_major, member.device_minor);
        let mode = Mode::from_raw_mode(member.mode);
        self.create(parent, name, || mknodat(&parent.fd, name, kind, mode, device))
            .map_err(|error| error.describe("making a device node or pipe"))?;
        attributes::set_on_name(member, parent, name, &mut self.summary)
    }

    /// The target is looked up in the merged tree, its own last component not followed.
    fn hard_link(&mut self, member: &Member, parent: &Parent, name: &[u8]) -> Result<(), ApplyError> {
        let refused = |reason: &str| {
            ApplyError::Refused(format!("its hard link target `{}` {reason}", printable(&member.link)))
        };
        let target = clean(&member.link, self.limits.path_components)
            .map_err(|_| refused("leads out of the image, or is too long"))?;
        if target.is_empty() {
            return Err(refused("is the root"));
        }
        let (target_directory, target_name) = split(&target);
        let target_parent =
            self.tree.existing_parent(target_directory)?.ok_or_else(|| refused("does not exist"))?;
        let link = || linkat(&target_parent.fd, target_name, &parent.fd, name, AtFlags::empty());
        match link() {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let inode = |directory: &Parent, name: &[u8]| {
                    statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW)
                        .map(|stat| stat.st_ino)
                        .map_err(|error| ApplyError::System("examining a hard link", error))
                };
                if inode(&target_parent, target_name)? != inode(parent, name)? {
                    whiteout::remove(&mut self.tree, parent, name)?;
                    link().map_err(|error| link_error(error, &refused))?;
                }
            }
            Err(error) => return Err(link_error(error, &refused)),
        }
        attributes::set_on_link(member, parent, name, &mut self.summary)
    }
}

fn link_error(error: Errno, refused: &dyn Fn(&str) -> ApplyError) -> ApplyError {
    match error {
        Errno::NOENT => refused("does not exist"),
        Errno::PERM => refused("is a directory"),
        Errno::MLINK => refused("has as many names as ext4 allows (65000)"),
        other => ApplyError::System("making a hard link", other),
    }
}

/// What failed when something was made in a directory.
enum CreateError {
    Making(Errno),
    Replacing(ApplyError),
}

impl CreateError {
    fn describe(self, what: &'static str) -> ApplyError {
        match self {
            Self::Making(error) => ApplyError::System(what, error),
            Self::Replacing(error) => error,
        }
    }
}

/// Copies `bytes` of the member's data into the file.
fn write_data(archive: &mut TarReader<impl BufRead>, file: &mut File, bytes: u64) -> Result<(), ApplyError> {
    let mut left = bytes;
    while left > 0 {
        let data = archive.data()?;
        let length = data.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if length == 0 {
            return Err(ApplyError::Tar(TarError::Io(io::ErrorKind::UnexpectedEof.into())));
        }
        file.write_all(&data[..length]).map_err(|error| system("writing a file", &error))?;
        archive.consume(length);
        left -= length as u64;
    }
    Ok(())
}

fn system(what: &'static str, error: &io::Error) -> ApplyError {
    ApplyError::System(what, Errno::from_io_error(error).unwrap_or(Errno::IO))
}

/// Removes one name that is not a directory; used where the type is known.
pub(super) fn unlink(parent: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    unlinkat(parent, name, AtFlags::empty())
}
