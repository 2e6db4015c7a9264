//! Records and the inode counter on a real directory.

use super::*;

fn record(device_id: &str, inode: u64) -> DeviceRecord {
    DeviceRecord {
        format: FORMAT,
        device_id: device_id.to_owned(),
        inode,
        lower_paths: vec!["/layers/base".into(), "/layers/top".into()],
        created_lower_count: 1,
        virtual_size_bytes: 1 << 30,
        upper: Some(UpperRecord {
            directory: "/upper".into(),
            generation: 3,
            uuid: "c0ffee00-0000-4000-8000-000000000000".into(),
            sealing_into: None,
        }),
        users_lost: false,
    }
}

#[test]
fn a_record_comes_back_as_it_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let records = Records::open(directory.path()).unwrap();
    let mut changed = record("one", 20);
    records.write(&changed).unwrap();
    changed.upper.as_mut().unwrap().sealing_into = Some("/sealed".into());
    changed.users_lost = true;
    records.write(&changed).unwrap();
    records.write(&record("two", 17)).unwrap();
    let (good, bad) = records.load().unwrap();
    assert_eq!(good, [record("two", 17), changed]);
    assert!(bad.is_empty());
    records.remove("one").unwrap();
    records.remove("one").unwrap();
    assert_eq!(records.load().unwrap().0, [record("two", 17)]);
}

#[test]
fn a_damaged_record_is_reported_and_hides_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let records = Records::open(directory.path()).unwrap();
    records.write(&record("good", 16)).unwrap();
    let text = fs::read_to_string(directory.path().join("good.json")).unwrap();
    fs::write(directory.path().join("cut.json"), &text[..text.len() / 2]).unwrap();
    fs::write(directory.path().join("empty.json"), "").unwrap();
    fs::write(directory.path().join("renamed.json"), &text).unwrap();
    fs::write(directory.path().join("future.json"), text.replace("\"format\": 1", "\"format\": 2")).unwrap();
    fs::write(directory.path().join("count.json"), text.replace("_count\": 1", "_count\": 3")).unwrap();
    fs::write(directory.path().join("other.txt"), "not ours").unwrap();
    let (good, mut bad) = records.load().unwrap();
    assert_eq!(good, [record("good", 16)]);
    bad.sort_by(|one, other| one.path.cmp(&other.path));
    let names: Vec<_> = bad.iter().map(|bad| bad.path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["count.json", "cut.json", "empty.json", "future.json", "renamed.json"]);
    assert!(bad[3].reason.contains("format 2"), "{}", bad[3].reason);
}

#[test]
fn a_write_that_was_interrupted_leaves_the_old_record() {
    let directory = tempfile::tempdir().unwrap();
    let records = Records::open(directory.path()).unwrap();
    records.write(&record("one", 16)).unwrap();
    fs::write(directory.path().join("one.json.partial"), "{").unwrap();
    let records = Records::open(directory.path()).unwrap();
    assert_eq!(records.load().unwrap().0, [record("one", 16)]);
    assert!(!directory.path().join("one.json.partial").exists());
}

#[test]
fn inodes_are_never_given_out_twice_whenever_the_daemon_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("next-inode");
    let mut last = 0;
    for _ in 0..5 {
        let inodes = Inodes::open(&path, 0).unwrap();
        for _ in 0..STEP + 10 {
            let inode = inodes.next().unwrap();
            assert!(inode > last);
            last = inode;
        }
    }
    assert!(last >= blockdev::fuse::FIRST_DEVICE_INODE + 5 * STEP);
}

#[test]
fn a_lost_inode_counter_goes_on_far_above_the_records() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("next-inode");
    assert_eq!(Inodes::open(&path, 0).unwrap().next().unwrap(), blockdev::fuse::FIRST_DEVICE_INODE);
    fs::write(&path, "garbage").unwrap();
    assert!(Inodes::open(&path, 5000).unwrap().next().unwrap() > 5000 + STEP);
    fs::write(&path, "100").unwrap();
    assert_eq!(Inodes::open(&path, 5000).unwrap().next().unwrap(), 5001);
    fs::write(&path, u64::MAX.to_string()).unwrap();
    assert!(Inodes::open(&path, 0).unwrap().next().is_err());
}
