//! What single members and layers on top of each other become.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::Bench;
use crate::support::mounted::{Mounted, assert_sound};
use crate::support::tar::{Entry, Tar, directory, entry, file, hard_link, pax_record, symlink};

/// Imports layers, checks every one with e2fsck, and mounts the top.
async fn converted(layers: &[Vec<u8>]) -> (Bench, Mounted) {
    let bench = Bench::new();
    let image = bench.import_layers(layers).await.unwrap();
    for layer in &image.layer_paths {
        assert_sound(layer);
    }
    bench.assert_clean();
    let mounted = Mounted::new(image.layer_paths.last().unwrap());
    (bench, mounted)
}

fn one(entries: impl IntoIterator<Item = Entry>) -> Vec<Vec<u8>> {
    vec![layer(entries)]
}

fn layer(entries: impl IntoIterator<Item = Entry>) -> Vec<u8> {
    entries.into_iter().fold(Tar::new(), Tar::add).finish()
}

fn stat(path: &Path) -> fs::Metadata {
    fs::symlink_metadata(path).unwrap()
}

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 65536];
    let length = rustix::fs::lgetxattr(path, name, &mut value).ok()?;
    value.truncate(length);
    Some(value)
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_and_times_beyond_the_classic_fields_are_kept() {
    let (_bench, mounted) = converted(&one([
        file("big", b"x").pax("uid", "3000000000").pax("gid", "2097152").pax("mtime", "1700000000.123456789"),
        file("old", b"x").pax("mtime", "-1.5").pax("atime", "5.25"),
        file("far", b"x").pax("mtime", "8589934592"),
    ]))
    .await;
    let big = stat(&mounted.path("big"));
    assert_eq!((big.uid(), big.gid()), (3_000_000_000, 2_097_152));
    assert_eq!((big.mtime(), big.mtime_nsec()), (1_700_000_000, 123_456_789));
    let old = stat(&mounted.path("old"));
    assert_eq!(
        (old.mtime(), old.mtime_nsec(), old.atime(), old.atime_nsec()),
        (-2, 500_000_000, 5, 250_000_000)
    );
    assert_eq!(stat(&mounted.path("far")).mtime(), 8_589_934_592);
}

#[tokio::test(flavor = "multi_thread")]
async fn setuid_bits_and_capabilities_survive_the_change_of_owner() {
    // Version 2, effective, cap_net_bind_service permitted.
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let (_bench, mounted) = converted(&one([
        file("suid", b"x").owner(7, 8).mode(0o6755),
        file("cap", b"x").owner(7, 8).mode(0o755).xattr("security.capability", capability),
        hard_link("cap2", "cap").owner(7, 8).mode(0o755),
        directory("shared").owner(0, 50).mode(0o2775),
        directory("shared/sub").mode(0o755),
        file("shared/file", b"x"),
        directory("sticky").mode(0o1777),
    ]))
    .await;
    let suid = stat(&mounted.path("suid"));
    assert_eq!((suid.mode() & 0o7777, suid.uid(), suid.gid()), (0o6755, 7, 8));
    assert_eq!(xattr(&mounted.path("cap2"), "security.capability").as_deref(), Some(&capability[..]));
    assert_eq!(stat(&mounted.path("shared")).mode() & 0o7777, 0o2775);
    assert_eq!(stat(&mounted.path("sticky")).mode() & 0o7777, 0o1777);
    for (path, mode) in [("shared/sub", 0o755), ("shared/file", 0o644)] {
        let found = stat(&mounted.path(path));
        assert_eq!((found.mode() & 0o7777, found.gid()), (mode, 0), "{path} took over its directory's group");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn extended_attributes_are_kept_where_ext4_can_have_them() {
    let (_bench, mounted) = converted(&one([
        file("f", b"x").xattr("user.binary", b"\0\n=\xff").xattr("trusted.t", "1").xattr("user.empty", ""),
        directory("d").xattr("user.d", "2"),
        symlink("l", "f").xattr("trusted.l", "3").xattr("user.skipped", "4"),
        entry(b'6', "p").xattr("trusted.p", "5").xattr("unknown.namespace", "6"),
    ]))
    .await;
    assert_eq!(xattr(&mounted.path("f"), "user.binary").as_deref(), Some(&b"\0\n=\xff"[..]));
    assert_eq!(xattr(&mounted.path("f"), "trusted.t").as_deref(), Some(&b"1"[..]));
    assert_eq!(xattr(&mounted.path("f"), "user.empty").as_deref(), Some(&b""[..]));
    assert_eq!(xattr(&mounted.path("d"), "user.d").as_deref(), Some(&b"2"[..]));
    assert_eq!(xattr(&mounted.path("l"), "trusted.l").as_deref(), Some(&b"3"[..]));
    assert_eq!(xattr(&mounted.path("p"), "trusted.p").as_deref(), Some(&b"5"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_default_acl_is_kept_and_does_not_leak_into_later_members() {
    // Version 2: user rwx, group r-x, other ---.
    let acl = [
        2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255,
        255, 255,
    ];
    let (_bench, mounted) = converted(&[
        layer([directory("d").xattr("system.posix_acl_default", acl), file("d/same-layer", b"x")]),
        layer([
            file("d/later", b"x").mode(0o666),
            directory("d/sub").mode(0o777),
            entry(b'6', "d/pipe").mode(0o666),
        ]),
    ])
    .await;
    assert_eq!(xattr(&mounted.path("d"), "system.posix_acl_default").as_deref(), Some(&acl[..]));
    for (name, mode) in [("same-layer", 0o644), ("later", 0o666), ("sub", 0o777), ("pipe", 0o666)] {
        let path = mounted.path("d").join(name);
        assert_eq!(stat(&path).mode() & 0o7777, mode, "{name}");
        assert_eq!(xattr(&path, "system.posix_acl_default"), None, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_pipes_and_links_are_made() {
    let (_bench, mounted) = converted(&one([
        entry(b'3', "dev/null").device(1, 3).mode(0o666),
        entry(b'4', "dev/disk").device(259, 70000).owner(0, 6).mode(0o660),
        entry(b'6', "dev/pipe").mode(0o600),
        symlink("dangling", "../../nowhere//./x/"),
        hard_link("dev/null2", "dev/null").mode(0o666),
        hard_link("link-to-link", "dangling"),
    ]))
    .await;
    let null = stat(&mounted.path("dev/null"));
    assert!(null.file_type().is_char_device());
    assert_eq!((null.rdev(), null.nlink()), (rustix::fs::makedev(1, 3), 2));
    assert_eq!(stat(&mounted.path("dev/disk")).rdev(), rustix::fs::makedev(259, 70000));
    assert!(stat(&mounted.path("dev/pipe")).file_type().is_fifo());
    assert_eq!(fs::read_link(mounted.path("dangling")).unwrap(), Path::new("../../nowhere//./x/"));
    assert_eq!(fs::read_link(mounted.path("link-to-link")).unwrap(), Path::new("../../nowhere//./x/"));
    assert_eq!(stat(&mounted.path("dev")).mode() & 0o7777, 0o755, "a missing parent");
}

#[tokio::test(flavor = "multi_thread")]
async fn hard_links_reach_into_lower_layers_and_make_missing_parents() {
    let (_bench, mounted) = converted(&[
        layer([file("usr/lib/a", b"content").mode(0o755)]),
        layer([
            hard_link("opt/deep/er/b", "/usr/lib/a").mode(0o755),
            hard_link("usr/lib/a", "usr/lib/a").mode(0o755),
        ]),
        layer([hard_link("c", "./opt/../opt/deep/er/b").mode(0o755)]),
    ])
    .await;
    let inode = stat(&mounted.path("usr/lib/a")).ino();
    assert_eq!(stat(&mounted.path("opt/deep/er/b")).ino(), inode);
    assert_eq!(stat(&mounted.path("c")).ino(), inode);
    assert_eq!(fs::read(mounted.path("c")).unwrap(), b"content");
}

#[tokio::test(flavor = "multi_thread")]
async fn whiteouts_hide_lower_entries_only() {
    let (_bench, mounted) = converted(&[
        layer([
            file("a", b"1"),
            file("b", b"1"),
            file("c", b"1"),
            directory("tree"),
            file("tree/deep/er", b"1"),
            file("kept/lower", b"1"),
            symlink("s", "kept"),
        ]),
        layer([
            file(".wh.a", b""),
            // Whatever the type of the marker.
            hard_link(".wh.b", "kept/lower"),
            entry(b'3', ".wh.c").device(0, 0),
            file(".wh.tree", b""),
            // What this layer has itself stays, before and after the marker.
            file("kept/early", b"2"),
            file(".wh.kept", b""),
            file("kept/late", b"2"),
            // Hides the link and not what it points to; hides nothing.
            file(".wh.s", b""),
            file(".wh.never-was", b""),
            file("no/such/.wh.directory", b""),
        ]),
    ])
    .await;
    assert_eq!(names(&mounted.path("")), ["kept", "lost+found"]);
    assert_eq!(names(&mounted.path("kept")), ["early", "late"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opaque_marker_after_its_siblings_hides_lower_entries_only() {
    let (_bench, mounted) = converted(&[
        layer([
            directory("o"),
            file("o/lower", b"1"),
            file("o/replaced", b"1"),
            directory("o/both"),
            file("o/both/lower", b"1"),
            file("o/implied/lower", b"1"),
            file("o/gone/lower", b"1"),
        ]),
        layer([
            directory("o"),
            file("o/new", b"2"),
            file("o/replaced", b"2"),
            directory("o/both"),
            file("o/both/new", b"2"),
            file("o/implied/new", b"2"),
            hard_link("o/linked", "o/new"),
            file("o/.wh..wh..opq", b""),
            file("o/after", b"2"),
            // Bookkeeping of AUFS means nothing.
            file(".wh..wh.aufs", b""),
            file(".wh..wh.plnk/1.2", b""),
        ]),
    ])
    .await;
    assert_eq!(names(&mounted.path("")), ["lost+found", "o"]);
    assert_eq!(names(&mounted.path("o")), ["after", "both", "implied", "linked", "new", "replaced"]);
    assert_eq!(names(&mounted.path("o/both")), ["new"]);
    assert_eq!(names(&mounted.path("o/implied")), ["new"]);
    assert_eq!(fs::read(mounted.path("o/replaced")).unwrap(), b"2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_image_can_be_replaced_by_an_opaque_root() {
    let (_bench, mounted) = converted(&[
        layer([file("a/b", b"1"), file("c", b"1")]),
        layer([file("d", b"2"), file(".wh..wh..opq", b"")]),
    ])
    .await;
    assert_eq!(names(&mounted.path("")), ["d", "lost+found"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn members_replace_what_is_of_another_type() {
    let (_bench, mounted) = converted(&[
        layer([
            directory("dir"),
            file("dir/x/y", b"1"),
            file("file", b"1"),
            symlink("link", "dir"),
            file("parent", b"1"),
            hard_link("other-name", "file"),
        ]),
        layer([file("dir", b"2"), directory("file"), file("link", b"2"), file("parent/child", b"2")]),
    ])
    .await;
    assert_eq!(fs::read(mounted.path("dir")).unwrap(), b"2");
    assert!(stat(&mounted.path("file")).is_dir());
    assert!(stat(&mounted.path("link")).is_file());
    assert_eq!(fs::read(mounted.path("parent/child")).unwrap(), b"2");
    assert_eq!(
        fs::read(mounted.path("other-name")).unwrap(),
        b"1",
        "replacing a file changed its other name"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn symlinked_parents_are_followed_inside_the_image() {
    let (_bench, mounted) = converted(&[
        layer([
            directory("usr/lib"),
            symlink("lib", "usr/lib"),
            symlink("abs", "/usr/lib"),
            symlink("out", "../../../etc"),
        ]),
        layer([
            file("lib/a", b"1"),
            file("abs/b", b"1"),
            // The target does not exist yet: made inside the image.
            file("out/c", b"1"),
            hard_link("d", "lib/a"),
        ]),
    ])
    .await;
    assert_eq!(names(&mounted.path("usr/lib")), ["a", "b"]);
    assert_eq!(names(&mounted.path("etc")), ["c"]);
    assert!(stat(&mounted.path("lib")).file_type().is_symlink());
    assert_eq!(stat(&mounted.path("d")).nlink(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_keep_their_times_whatever_is_put_into_them() {
    let (_bench, mounted) = converted(&[
        layer([directory("d").time(1000), file("d/a", b""), directory("e").time(2000), file("e/a", b"")]),
        // `d` is not listed again, `e` is; `made` has no member.
        layer([
            file("d/b", b"").time(5000),
            directory("e").time(3000),
            file("e/b", b""),
            file("made/x", b"").time(4000),
        ]),
    ])
    .await;
    assert_eq!(stat(&mounted.path("d")).mtime(), 1000);
    assert_eq!(stat(&mounted.path("e")).mtime(), 3000);
    assert_eq!(stat(&mounted.path("made")).mtime(), 4000);
}

#[tokio::test(flavor = "multi_thread")]
async fn long_names_of_both_kinds_are_read() {
    let long = |letter: &str| (0..20).map(|_| letter.repeat(50)).collect::<Vec<_>>().join("/");
    let gnu = |kind: u8, name: &str| entry(kind, "././@LongLink").data(&[name.as_bytes(), b"\0"].concat());
    let (pax_name, gnu_name, target) = (long("p"), long("g"), long("t"));
    let (_bench, mounted) = converted(&one([
        file(&pax_name, b"1"),
        gnu(b'L', &gnu_name),
        file("short", b"2"),
        gnu(b'K', &target),
        symlink("link", "short"),
        // Old archives: type NUL, a trailing slash for directories, no magic.
        {
            let mut old = entry(0, "old/");
            old.block[257..265].fill(0);
            old
        },
        {
            let mut old = entry(0, "old/file").data(b"3");
            old.block[257..265].fill(0);
            old
        },
        entry(b'7', "contiguous").data(b"4"),
        entry(b'g', "global").data(&pax_record(b"path", b"must-not-apply")),
        file("after-global", b"5"),
    ]))
    .await;
    assert_eq!(fs::read(mounted.path(&pax_name)).unwrap(), b"1");
    assert_eq!(fs::read(mounted.path(&gnu_name)).unwrap(), b"2");
    assert_eq!(fs::read_link(mounted.path("link")).unwrap(), PathBuf::from(target));
    assert_eq!(fs::read(mounted.path("old/file")).unwrap(), b"3");
    assert_eq!(fs::read(mounted.path("contiguous")).unwrap(), b"4");
    assert_eq!(fs::read(mounted.path("after-global")).unwrap(), b"5");
}

/// GNU tar itself writes the sparse members, in each format it knows.
#[tokio::test(flavor = "multi_thread")]
async fn sparse_members_of_every_format_keep_their_holes() {
    const MIB: u64 = 1 << 20;
    let source = tempfile::tempdir().unwrap();
    let write = |name: &str, pieces: &[u64], size: u64| {
        use std::os::unix::fs::FileExt;
        let file = fs::File::create(source.path().join(name)).unwrap();
        for &offset in pieces {
            file.write_all_at(&[b'x'; 4096], offset).unwrap();
        }
        file.set_len(size).unwrap();
    };
    write("few", &[0, MIB, 5 * MIB], 8 * MIB);
    // More pieces than fit into one header and one extension block.
    write("many", &(0..60).map(|piece| piece * MIB).collect::<Vec<_>>(), 64 * MIB);
    write("hole", &[], 3 * MIB);
    write("huge", &[(1 << 33) + 4096], (1 << 33) + MIB);
    for format in [
        &["--format=gnu"][..],
        &["--format=posix", "--sparse-version=0.0"],
        &["--format=posix", "--sparse-version=0.1"],
        &["--format=posix", "--sparse-version=1.0"],
    ] {
        let archive = Command::new("tar")
            .args(["-c", "--sparse", "-f", "-"])
            .args(format)
            .arg("-C")
            .arg(source.path())
            .args(["few", "many", "hole", "huge"])
            .output()
            .unwrap();
        assert!(archive.status.success());
        assert!((archive.stdout.len() as u64) < MIB, "tar did not write sparse members");
        let (_bench, mounted) = converted(&[archive.stdout]).await;
        for name in ["few", "many", "hole", "huge"] {
            let (original, unpacked) = (source.path().join(name), mounted.path(name));
            assert_eq!(stat(&unpacked).len(), stat(&original).len(), "{name} {format:?}");
            assert!(stat(&unpacked).blocks() * 512 <= MIB, "{name} {format:?} has lost its holes");
            // Reading gigabytes of holes twice would take longer than everything else here.
            let skipped = stat(&original).len().saturating_sub(64 * MIB).to_string();
            let compared =
                Command::new("cmp").args(["-i", &skipped]).arg(&original).arg(&unpacked).status().unwrap();
            assert!(compared.success(), "{name} {format:?} differs");
        }
    }
}
