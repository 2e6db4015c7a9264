//! Crashes between the steps of an operation, imitated by what each step leaves on disk.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use blockdev::{DeviceInfo, DeviceSpec, FrontEnd, FrontEndError, Image};
use overlaybd::{Stack, Upper};
use uuid::Uuid;

use super::open::{create_upper, open_upper};
use super::{Devices, NewDevice};
use crate::StorageError;
use crate::records::{DeviceRecord, Records, UpperRecord};

const SIZE: u64 = 1 << 20;

/// Keeps images by name and serves nobody.
#[derive(Debug, Default)]
struct Shelf(Mutex<HashMap<String, Arc<dyn Image>>>);

impl FrontEnd for Shelf {
    fn name(&self) -> &'static str {
        "shelf"
    }
    fn mount_point(&self) -> &Path {
        Path::new("/nowhere")
    }
    fn open(&self, spec: DeviceSpec, image: Arc<dyn Image>) -> Result<PathBuf, FrontEndError> {
        let path = self.mount_point().join(&spec.name);
        self.0.lock().unwrap().insert(spec.name, image);
        Ok(path)
    }
    fn swap(&self, name: &str, image: Arc<dyn Image>) -> Result<Arc<dyn Image>, FrontEndError> {
        self.0
            .lock()
            .unwrap()
            .insert(name.to_owned(), image)
            .ok_or_else(|| FrontEndError::NotFound(name.to_owned()))
    }
    fn close(&self, name: &str) -> Result<Arc<dyn Image>, FrontEndError> {
        self.0.lock().unwrap().remove(name).ok_or_else(|| FrontEndError::NotFound(name.to_owned()))
    }
    fn list(&self) -> Vec<DeviceInfo> {
        Vec::new()
    }
    fn serve(&self) -> Result<(), FrontEndError> {
        Ok(())
    }
    fn detach(&self) {}
    fn remove(&self) -> Result<(), FrontEndError> {
        Ok(())
    }
}

struct Fixture {
    directory: tempfile::TempDir,
}

impl Fixture {
    /// A device `disk` with 1 in sector 0 and 1 in sector 1.
    fn new() -> Self {
        let fixture = Self { directory: tempfile::tempdir().unwrap() };
        let (devices, shelf) = fixture.open();
        devices.create(&fixture.request()).unwrap();
        write(&shelf, 0, 1);
        write(&shelf, 1, 1);
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn request(&self) -> NewDevice {
        NewDevice {
            device_id: "disk".into(),
            lower_paths: Vec::new(),
            upper_directory: Some(self.path("upper")),
            virtual_size_bytes: SIZE,
        }
    }

    fn records(&self) -> Records {
        Records::open(&self.path("records")).unwrap()
    }

    /// What a daemon does at its start.
    fn open(&self) -> (Devices, Arc<Shelf>) {
        let shelf = Arc::new(Shelf::default());
        let devices =
            Devices::open(self.directory.path(), self.records(), Arc::clone(&shelf) as _, false).unwrap();
        (devices, shelf)
    }

    fn record(&self) -> DeviceRecord {
        self.records().load().unwrap().0.remove(0)
    }

    /// The first two steps of a restack.
    fn begin_restack(&self) -> (UpperRecord, Upper) {
        let mut record = self.record();
        let upper = record.upper.as_mut().unwrap();
        let next = create_upper(&upper.files(upper.generation + 1), SIZE, Uuid::new_v4(), None).unwrap();
        upper.sealing_into = Some(self.path("sealed"));
        let begun = upper.clone();
        self.records().write(&record).unwrap();
        (begun, next)
    }
}

fn write(shelf: &Shelf, sector: u64, value: u8) {
    shelf.0.lock().unwrap()["disk"].write_at(&[value; 512], sector * 512).unwrap();
}

fn read(shelf: &Shelf, sector: u64) -> u8 {
    let mut bytes = [0; 512];
    shelf.0.lock().unwrap()["disk"].read_at(&mut bytes, sector * 512).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

fn check_restacked(fixture: &Fixture, sectors: [u8; 3]) {
    let (devices, shelf) = fixture.open();
    let view = devices.get("disk").unwrap();
    assert_eq!(view.damage, "");
    assert_eq!(view.lower_paths, [fixture.path("sealed")]);
    assert_eq!([0, 1, 2].map(|sector| read(&shelf, sector)), sectors);
    let record = fixture.record();
    let upper = record.upper.as_ref().unwrap();
    assert_eq!((upper.generation, &upper.sealing_into), (1, &None));
    assert!(!fixture.path("upper/upper.data").exists());
    // It goes on as any device: the request that made it is still recognised, and it can be restacked again.
    devices.create(&fixture.request()).unwrap();
    write(&shelf, 2, 9);
    devices.restack("disk", &fixture.path("sealed-again")).unwrap();
    drop((devices, shelf));
    let (_devices, shelf) = fixture.open();
    assert_eq!(read(&shelf, 2), 9);
}

#[test]
fn a_crash_before_the_record_of_a_restack_leaves_the_device_as_it_was() {
    let fixture = Fixture::new();
    let upper = fixture.record().upper.unwrap();
    drop(create_upper(&upper.files(1), SIZE, Uuid::new_v4(), None).unwrap());
    let (devices, shelf) = fixture.open();
    assert!(devices.get("disk").unwrap().lower_paths.is_empty());
    assert_eq!([read(&shelf, 0), read(&shelf, 1)], [1, 1]);
    devices.restack("disk", &fixture.path("sealed")).unwrap();
    assert_eq!(read(&shelf, 1), 1);
}

#[test]
fn a_crash_before_the_seal_is_carried_through_with_writes_to_both_uppers() {
    let fixture = Fixture::new();
    let (_, next) = fixture.begin_restack();
    let stack = Stack::open(Vec::new(), Some(next)).unwrap();
    stack.write_at(&[2; 512], 512).unwrap();
    stack.write_at(&[2; 512], 1024).unwrap();
    drop(stack);
    check_restacked(&fixture, [1, 2, 2]);
}

#[test]
fn a_crash_after_the_seal_is_carried_through() {
    let fixture = Fixture::new();
    let (upper, next) = fixture.begin_restack();
    let stack = Stack::open(Vec::new(), Some(next)).unwrap();
    stack.write_at(&[2; 512], 0).unwrap();
    drop(stack);
    open_upper(&upper.live_files()).unwrap().seal(&fixture.path("sealed")).unwrap();
    check_restacked(&fixture, [2, 1, 0]);
}

#[test]
fn a_restack_that_was_given_up_is_dropped() {
    let fixture = Fixture::new();
    let (upper, next) = fixture.begin_restack();
    drop(next);
    super::create::remove_files(&upper.files(1));
    let (devices, shelf) = fixture.open();
    assert_eq!(devices.get("disk").unwrap().damage, "");
    assert!(devices.get("disk").unwrap().lower_paths.is_empty());
    assert_eq!([read(&shelf, 0), read(&shelf, 1)], [1, 1]);
    assert_eq!(fixture.record().upper.unwrap().sealing_into, None);
}

#[test]
fn an_upper_that_a_crash_left_before_its_record_gives_way_to_the_repeated_request() {
    let fixture = Fixture { directory: tempfile::tempdir().unwrap() };
    let files = UpperRecord {
        directory: fixture.path("upper"),
        generation: 0,
        uuid: String::new(),
        sealing_into: None,
    }
    .live_files();
    std::fs::create_dir(fixture.path("upper")).unwrap();
    drop(create_upper(&files, SIZE / 2, Uuid::new_v4(), None).unwrap());
    let (devices, shelf) = fixture.open();
    assert_eq!(devices.create(&fixture.request()).unwrap().virtual_size_bytes, SIZE);
    write(&shelf, 0, 1);
}

#[test]
fn a_device_that_cannot_be_made_leaves_no_file_and_no_record() {
    let fixture = Fixture { directory: tempfile::tempdir().unwrap() };
    let (devices, _shelf) = fixture.open();
    std::fs::remove_dir(fixture.path("records")).unwrap();
    let error = devices.create(&fixture.request()).unwrap_err();
    assert!(matches!(error, StorageError::Io { .. }), "{error}");
    assert!(matches!(devices.get("disk"), Err(StorageError::NotFound(_))));
    assert!(!fixture.path("upper/upper.data").exists());
    std::fs::create_dir(fixture.path("records")).unwrap();
    devices.create(&fixture.request()).unwrap();
}

#[test]
fn a_layer_of_many_devices_is_opened_once_and_closed_with_the_last() {
    let fixture = Fixture::new();
    let (devices, _shelf) = fixture.open();
    let sealed = fixture.path("sealed");
    devices.restack("disk", &sealed).unwrap();
    devices.close("disk", true).unwrap();
    for name in ["one", "two"] {
        let request = NewDevice {
            device_id: name.into(),
            lower_paths: vec![sealed.clone()],
            upper_directory: None,
            virtual_size_bytes: 0,
        };
        devices.create(&request).unwrap();
    }
    let open = || {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        descriptors
            .filter(|entry| {
                std::fs::read_link(entry.as_ref().unwrap().path()).is_ok_and(|path| path == sealed)
            })
            .count()
    };
    assert_eq!(open(), 1);
    devices.close("one", false).unwrap();
    assert_eq!(open(), 1);
    devices.close("two", false).unwrap();
    assert_eq!(open(), 0);
}

#[test]
fn nothing_is_begun_once_the_end_is_near() {
    let fixture = Fixture::new();
    let (devices, _shelf) = fixture.open();
    devices.end();
    let other = NewDevice {
        device_id: "other".into(),
        upper_directory: Some(fixture.path("other")),
        ..fixture.request()
    };
    assert!(matches!(devices.create(&other), Err(StorageError::ShuttingDown)));
    assert!(matches!(devices.restack("disk", &fixture.path("sealed")), Err(StorageError::ShuttingDown)));
    devices.flush("disk").unwrap();
    devices.close("disk", false).unwrap();
}

#[test]
fn operations_on_one_device_from_many_threads_are_done_one_by_one() {
    let fixture = Fixture::new();
    let (devices, shelf) = fixture.open();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (devices, fixture) = (&devices, &fixture);
            scope.spawn(move || {
                for round in 0..5 {
                    devices.restack("disk", &fixture.path(&format!("sealed-{number}-{round}"))).unwrap();
                    devices.flush("disk").unwrap();
                    devices.create(&fixture.request()).unwrap();
                }
            });
        }
    });
    assert_eq!(devices.get("disk").unwrap().lower_paths.len(), 20);
    assert_eq!([read(&shelf, 0), read(&shelf, 1)], [1, 1]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| devices.close("disk", true).unwrap());
        }
    });
    assert_eq!(devices.count(), 0);
}
