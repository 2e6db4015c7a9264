//! Users and groups, from the image's `passwd` and `group` files.
//!
//! Read directly: the C library's way needs shared libraries of the image, which may have none. Read anew for each
//! request, because programs add users while the sandbox runs; both files are a few kilobytes.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Most supplementary groups the kernel takes (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;

/// A user as commands and files need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: PathBuf,
    pub(crate) shell: String,
    /// Supplementary groups, the primary one included.
    pub(crate) groups: Vec<u32>,
}

/// Finds a user by name. An image without `passwd` still has root.
pub(crate) fn find_user(etc: &Path, name: &str) -> Option<User> {
    let passwd = read(&etc.join("passwd"));
    let found = passwd.lines().find_map(|line| parse_user(line).filter(|user| user.name == name));
    let mut user = match found {
        Some(user) => user,
        None if name == "root" => User {
            name: "root".into(),
            uid: 0,
            gid: 0,
            home: PathBuf::from("/root"),
            shell: "/bin/sh".into(),
            groups: Vec::new(),
        },
        None => return None,
    };
    user.groups = groups_of(&read(&etc.join("group")), &user);
    Some(user)
}

/// Whether the image has this user.
pub(crate) fn exists(etc: &Path, name: &str) -> bool {
    read(&etc.join("passwd")).lines().any(|line| line.split(':').next() == Some(name))
}

/// Names by number, for listings.
#[derive(Debug, Default)]
pub(crate) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    pub(crate) fn read(etc: &Path) -> Self {
        Self {
            users: names_by_id(&read(&etc.join("passwd"))),
            groups: names_by_id(&read(&etc.join("group"))),
        }
    }

    /// A user's name, or its number when it has none.
    pub(crate) fn user(&self, uid: u32) -> String {
        self.users.get(&uid).map_or_else(|| uid.to_string(), Clone::clone)
    }

    /// A group's name, or its number when it has none.
    pub(crate) fn group(&self, gid: u32) -> String {
        self.groups.get(&gid).map_or_else(|| gid.to_string(), Clone::clone)
    }
}

fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        // A file that cannot be read to its end still names the users before that.
        let _ = file.take(FILE_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `name:password:uid:gid:comment:home:shell`
fn parse_user(line: &str) -> Option<User> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?;
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    let home = fields.nth(1).filter(|home| home.starts_with('/')).unwrap_or("/");
    let shell = fields.next().filter(|shell| !shell.is_empty()).unwrap_or("/bin/sh");
    Some(User {
        name: name.into(),
        uid,
        gid,
        home: PathBuf::from(home),
        shell: shell.into(),
        groups: Vec::new(),
    })
}

/// `name:password:gid:member,member`
fn groups_of(group: &str, user: &User) -> Vec<u32> {
    let member_of = group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let gid: u32 = fields.nth(2)?.parse().ok()?;
        fields.next()?.split(',').any(|member| member == user.name).then_some(gid)
    });
    let mut groups: Vec<u32> = std::iter::once(user.gid).chain(member_of).collect();
    groups.sort_unstable();
    groups.dedup();
    groups.truncate(GROUPS_MAX);
    groups
}

/// In both files the number is the third field. The first name of a number wins, as in the C library.
fn names_by_id(text: &str) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(Ok(id))) = (fields.next(), fields.nth(1).map(str::parse)) {
            names.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etc() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let passwd = "root:x:0:0:root:/root:/bin/bash\n# comment\nbroken\nuser:x:1000:1000:U,,,:/home/user:\n\
                      odd:x:abc:1:::\nalias:x:1000:1000::relative:/bin/sh\n";
        let group = "root:x:0:\nsudo:x:27:user,other\nuser:x:1000:\ndocker:x:998:other,user\nempty:x:5\n";
        std::fs::write(directory.path().join("passwd"), passwd).unwrap();
        std::fs::write(directory.path().join("group"), group).unwrap();
        directory
    }

    #[test]
    fn a_user_has_home_shell_and_all_groups() {
        let etc = etc();
        let user = find_user(etc.path(), "user").unwrap();
        assert_eq!((user.uid, user.gid, user.home.to_str().unwrap()), (1000, 1000, "/home/user"));
        assert_eq!(user.shell, "/bin/sh");
        assert_eq!(user.groups, [27, 998, 1000]);
        assert_eq!(find_user(etc.path(), "alias").unwrap().home, PathBuf::from("/"));
    }

    #[test]
    fn unknown_and_malformed_users_are_not_found() {
        let etc = etc();
        for name in ["", "nobody", "odd", "broken", "# comment", "user:x"] {
            assert_eq!(find_user(etc.path(), name), None, "{name}");
        }
    }

    #[test]
    fn root_exists_without_any_file() {
        let user = find_user(Path::new("/nonexistent"), "root").unwrap();
        assert_eq!((user.uid, user.groups), (0, vec![0]));
        assert_eq!(find_user(Path::new("/nonexistent"), "user"), None);
    }

    #[test]
    fn numbers_without_a_name_stay_numbers() {
        let names = Names::read(etc().path());
        assert_eq!((names.user(1000), names.group(27)), ("user".into(), "sudo".into()));
        assert_eq!((names.user(4242), names.group(4242)), ("4242".into(), "4242".into()));
    }
}
