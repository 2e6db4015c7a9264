//! Archives made to do harm. Each is refused with an error that names the member, or has its way inside the image only;
//! the host stays as it was.

use std::fs;
use std::path::PathBuf;

use image::ImageError;

use crate::support::Bench;
use crate::support::layout::{self, Layer};
use crate::support::mounted::{Mounted, assert_sound};
use crate::support::tar::{Entry, Tar, directory, entry, file, hard_link, pax_record, symlink};

/// A directory on the host that archives aim at.
struct Canary {
    directory: tempfile::TempDir,
}

impl Canary {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("image-canary-").tempdir().unwrap();
        fs::write(directory.path().join("secret"), "unchanged").unwrap();
        Self { directory }
    }

    fn path(&self) -> String {
        self.directory.path().to_str().unwrap().to_owned()
    }

    fn assert_untouched(&self) {
        let names: Vec<PathBuf> =
            fs::read_dir(self.directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names, [self.directory.path().join("secret")], "the host was changed");
        assert_eq!(fs::read_to_string(&names[0]).unwrap(), "unchanged");
        assert_eq!(std::os::unix::fs::MetadataExt::nlink(&fs::metadata(&names[0]).unwrap()), 1);
    }
}

fn archive(entries: impl IntoIterator<Item = Entry>) -> Vec<u8> {
    entries.into_iter().fold(Tar::new(), Tar::add).finish()
}

/// The archive is refused, and the message has `member` and `reason`.
async fn refused(archive: Vec<u8>, member: &str, reason: &str) {
    let bench = Bench::new();
    let error = bench.import_layers(&[archive]).await.expect_err(member);
    match &error {
        ImageError::Member { member: found, .. } => assert!(found.contains(member), "{error}"),
        other => panic!("not refused for a member: {other}"),
    }
    assert!(error.to_string().contains(reason), "{error}");
    bench.assert_clean();
    let layers = fs::read_dir(bench.directory.path().join("layers")).unwrap();
    assert_eq!(layers.count(), 1, "something beside the lock was kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_that_climb_out_are_refused() {
    for path in ["../evil", "a/../../evil", "/../evil", "a/b/../../../evil", ".."] {
        refused(archive([file("ok", b""), file(path, b"x")]), path, "leads out of the image").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn absolute_paths_and_symlinks_stay_inside_the_image() {
    let canary = Canary::new();
    let host = canary.path();
    let bench = Bench::new();
    let absolute = format!("{host}/absolute");
    let image = bench
        .import_tar(&archive([
            file(&absolute, b"x"),
            symlink("escape", &host),
            file("escape/through-link", b"x"),
            symlink("up", "../../../../../../../../.."),
            file(&format!("up{host}/up"), b"x"),
            symlink("a", "b"),
            symlink("b", &host),
            file("a/chain", b"x"),
            file("secret-name", b"x"),
            symlink("overwritten", &format!("{host}/secret")),
            file("overwritten", b"changed"),
            entry(b'3', "escape/device").device(1, 3),
            directory("escape/directory"),
            file(&format!("{host}/.wh.secret"), b""),
            file("escape/.wh..wh..opq", b""),
        ]))
        .await
        .unwrap();
    canary.assert_untouched();
    assert_sound(&image.layer_paths[0]);
    let mounted = Mounted::new(&image.layer_paths[0]);
    let inside = mounted.path(host.trim_start_matches('/'));
    for name in ["absolute", "through-link", "up", "chain", "device", "directory"] {
        assert!(fs::symlink_metadata(inside.join(name)).is_ok(), "{name} is not where it should be");
    }
    drop(mounted);
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn symlink_loops_are_refused_or_replaced_without_hanging() {
    let looped = archive([symlink("x", "y"), symlink("y", "x"), file("x/file", b"")]);
    refused(looped, "x/file", "symbolic links").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hard_links_to_the_outside_are_refused() {
    let canary = Canary::new();
    let secret = format!("{}/secret", canary.path());
    refused(archive([hard_link("h", &secret)]), "h", "does not exist").await;
    refused(archive([hard_link("h", "../../etc/passwd")]), "h", "leads out of the image").await;
    refused(archive([symlink("s", &canary.path()), hard_link("h", "s/secret")]), "h", "does not exist").await;
    refused(archive([directory("d"), hard_link("h", "d")]), "h", "is a directory").await;
    refused(archive([hard_link("h", "")]), "h", "is the root").await;
    canary.assert_untouched();
}

#[tokio::test(flavor = "multi_thread")]
async fn whiteouts_of_no_name_are_refused() {
    for name in ["d/.wh.", "d/.wh..", "d/.wh..."] {
        refused(archive([directory("d"), file(name, b"")]), name, "whiteout of no name").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn absurd_numbers_are_refused() {
    let raw = |field: std::ops::Range<usize>, value: &[u8]| {
        let mut entry = file("odd", b"");
        entry.block[field.start..field.start + value.len()].copy_from_slice(value);
        entry
    };
    let negative = [0xff; 12];
    let huge = [0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    // The size field is written last by the builder, so sizes go through pax.
    refused(archive([file("odd", b"").pax("size", "18446744073709551615")]), "at byte", "size").await;
    refused(archive([file("odd", b"").pax("size", "9223372036854775807")]), "odd", "cut off").await;
    refused(archive([raw(108..116, &negative[..8])]), "odd", "user id is negative").await;
    refused(archive([file("odd", b"").pax("uid", "4294967295")]), "odd", "out of range").await;
    refused(archive([file("odd", b"").pax("gid", "99999999999999999999")]), "at byte", "out of range").await;
    refused(archive([raw(136..148, b"notanumber\0\0")]), "odd", "modification time").await;
    refused(archive([file("odd", b"").pax("mtime", "99999999999999999999")]), "at byte", "time").await;
    refused(archive([raw(100..108, b"zzzzzzz\0")]), "odd", "mode").await;
    let mut device = entry(b'3', "device");
    device.block[329..337].copy_from_slice(&negative[..8]);
    refused(archive([device]), "device", "device number").await;
    let mut size = file("negative", b"");
    size.block[124..136].copy_from_slice(&huge);
    let mut block = size.block;
    block[148..156].fill(b' ');
    for (value, reason) in [(negative, "size is negative"), (huge, "cut off")] {
        block[124..136].copy_from_slice(&value);
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        refused(Tar::new().raw(&block).finish(), "negative", reason).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_no_names_are_refused() {
    refused(archive([file("x", b"").pax("path", "nul\0byte")]), "nul", "NUL").await;
    refused(archive([file("x", b"").pax("path", "n".repeat(300))]), "nnn", "longer than 255").await;
    refused(archive([file("x", b"").pax("path", "n/".repeat(3000))]), "n/n", "longer than 4095").await;
    refused(archive([file("x", b"").pax("path", "n/".repeat(1500))]), "n/n", "more than 1024 components")
        .await;
    refused(archive([symlink("s", "")]), "s", "symbolic link").await;
    refused(archive([file("/", b"x")]), "/", "names the root").await;
    refused(archive([file("lost+found", b"x")]), "lost+found", "belongs to the file system").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_member_types_are_refused() {
    refused(archive([entry(b'Z', "odd")]), "odd", "type `Z` is not supported").await;
    refused(archive([entry(b'M', "continued")]), "continued", "not supported").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_pax_headers_are_refused() {
    let header = |records: &[u8]| archive([entry(b'x', "pax").data(records), file("after", b"")]);
    for records in [&b"99 path=a\n"[..], b"5 a=\n\n", b"x", b"00000000000000000000011 path=ab\n"] {
        refused(header(records), "at byte", "malformed").await;
    }
    let bomb = pax_record(b"comment", &vec![b'a'; 2 << 20]);
    refused(header(&bomb), "pax", "above 1048576 bytes").await;
    refused(
        Tar::new().add(entry(b'x', "pax").data(&pax_record(b"path", b"a"))).finish(),
        "at byte",
        "ends after",
    )
    .await;
    refused(
        archive([file("x", b"").xattr("user.big", vec![b'v'; 60_000])]),
        "x",
        "extended attribute `user.big` does not fit",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_sparse_maps_are_refused() {
    let sparse = |records: &[(&str, &str)], data: &[u8]| {
        let entry = file("sparse", data);
        archive([records.iter().fold(entry, |entry, (key, value)| entry.pax(key, value))])
    };
    let version_1 = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "4096")];
    let padded = |text: &str| {
        let mut data = text.as_bytes().to_vec();
        data.resize(512, 0);
        data
    };
    for (text, reason) in [
        ("1\n0\n8192\n", "beyond the file"),
        ("2\n100\n10\n50\n10\n", "out of order"),
        ("1\n0\n100\n", "places 100 bytes, but 0 are stored"),
        ("99999999\n", "more than"),
        ("99999999999999999999999999\n", "out of range"),
        ("x\n", "not a number"),
        ("1\n0\n", "out of range"),
        ("1\n18446744073709551615\n1\n", "beyond the file"),
    ] {
        refused(sparse(&version_1, &padded(text)), "sparse", reason).await;
    }
    refused(sparse(&version_1, b"1\n"), "sparse", "cut off").await;
    refused(
        sparse(&[("GNU.sparse.map", "0,1"), ("GNU.sparse.numblocks", "1")], b"x"),
        "sparse",
        "size is missing",
    )
    .await;
    refused(
        sparse(&[("GNU.sparse.size", "9"), ("GNU.sparse.map", "0")], b"x"),
        "sparse",
        "middle of an entry",
    )
    .await;
    refused(
        sparse(&[("GNU.sparse.major", "2"), ("GNU.sparse.minor", "7")], b"x"),
        "sparse",
        "2.7 is not known",
    )
    .await;
    refused(sparse(&[("GNU.sparse.numbytes", "9")], b"x"), "at byte", "alternate").await;
    let absurd = [("GNU.sparse.size", "9223372036854775807"), ("GNU.sparse.numblocks", "0")];
    refused(sparse(&absurd, b""), "sparse", "sizing a sparse file").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_archives_are_refused_at_the_member_they_end_in() {
    let whole = Tar::new().add(file("first", b"1")).add(file("second", &[b'x'; 5000])).unfinished();
    refused(whole[..1024 + 700].to_vec(), "second", "cut off").await;
    refused(whole[..1024 + 100].to_vec(), "first", "cut off").await;
    refused(b"this is no archive at all".to_vec(), "(first member)", "cut off").await;
    refused(vec![b'x'; 4096], "xxxx", "checksum").await;
    let hole = Tar::new().add(file("a", b"")).raw(&[0; 512]).add(file("b", b"")).finish();
    refused(hole, "at byte 512", "zero block is followed by data").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_stream_and_a_missing_end_mark_are_accepted() {
    let bench = Bench::new();
    let image = bench
        .import_layers(&[Tar::new().add(file("a", b"1")).unfinished(), Vec::new(), Tar::new().finish()])
        .await
        .unwrap();
    assert_eq!(fs::read(Mounted::new(&image.layer_paths[2]).path("a")).unwrap(), b"1");
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_members_are_cut_off() {
    let bench = Bench::with(|config| config.limits.members = 1000);
    let many = archive((0..1001).map(|number| file(&format!("f{number}"), b"")));
    let error = bench.import_layers(&[many]).await.unwrap_err().to_string();
    assert!(error.contains("f1000") && error.contains("more than 1000 members"), "{error}");
    let headers = archive((0..1001).map(|_| entry(b'x', "pax").data(&pax_record(b"path", b"a"))));
    let error = bench.import_layers(&[headers]).await.unwrap_err().to_string();
    assert!(error.contains("more than 1000 members"), "{error}");
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn decompression_bombs_are_cut_off() {
    use std::io::Write;
    let bench = Bench::with(|config| config.limits.uncompressed_layer_bytes = 32 << 20);
    // Zeros after the end mark, and zeros in a file.
    let trailing = [Tar::new().finish(), vec![0; 40 << 20]].concat();
    let inside = archive([file("zeros", &vec![0; 40 << 20])]);
    for tar in [trailing, inside] {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&tar).unwrap();
        let layer =
            Layer::compressed(&tar, gzip.finish().unwrap(), "application/vnd.oci.image.layer.v1.tar+gzip");
        let path = bench.directory.path().join("bomb");
        layout::write(&path, &[layer]);
        let error = bench.import(&format!("oci:{}", path.display())).await.unwrap_err();
        assert!(matches!(error, ImageError::LimitExceeded { .. }), "{error}");
        bench.assert_clean();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_virtual_disk_is_reported_with_the_member() {
    let bench = Bench::with(|config| config.default_virtual_size_bytes = 32 << 20);
    let error =
        bench.import_layers(&[archive([file("small", b"x"), file("large", &vec![b'x'; 40 << 20])])]).await;
    match error.unwrap_err() {
        ImageError::DiskFull { member, virtual_size_bytes, .. } => {
            assert_eq!((member.as_str(), virtual_size_bytes), ("large", 32 << 20));
        }
        other => panic!("{other}"),
    }
    let inodes = archive((0..5000).map(|number| file(&format!("f{number}"), b"")));
    let error = bench.import_layers(&[inodes]).await.unwrap_err();
    assert!(matches!(error, ImageError::DiskFull { .. }), "{error}");
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn very_deep_trees_can_be_made_and_removed() {
    let path = vec!["d"; 1000].join("/");
    let bench = Bench::new();
    let image = bench
        .import_layers(&[
            archive([file(&format!("{path}/x"), b"")]),
            archive([symlink("s", &path[..999]), file(&format!("s/s/{}", &path[..999]), b"")]),
            archive([file(".wh.d", b"")]),
        ])
        .await
        .unwrap();
    assert_sound(&image.layer_paths[2]);
}
