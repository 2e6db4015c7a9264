//! Compaction keeps what shows and drops what does not.

use std::sync::Arc;

use overlaybd::{CommitError, CommitOptions, Layer, Stack, commit};
use uuid::Uuid;

use crate::content::{Model, golden};

fn layer(name: &str) -> Arc<Layer> {
    Layer::open_file(&golden().join("lsmt").join(name)).unwrap()
}

fn compact(layers: &[Arc<Layer>]) -> (Vec<u8>, Arc<Layer>) {
    let mut bytes = Vec::new();
    let committed = commit(layers, &CommitOptions::default(), &mut bytes).unwrap();
    assert_eq!(committed.size_bytes, bytes.len() as u64);
    let layer = Layer::open(Arc::new(bytes.clone())).unwrap();
    assert_eq!(committed.mappings, layer.mappings().len() as u64);
    (bytes, layer)
}

fn disk(layers: Vec<Arc<Layer>>) -> Vec<u8> {
    let stack = Stack::open(layers, None).unwrap();
    let mut disk = vec![0xee; usize::try_from(stack.virtual_size_bytes()).unwrap()];
    stack.read_at(&mut disk, 0).unwrap();
    disk
}

#[test]
fn three_layers_compacted_show_the_same_disk() {
    let layers = vec![layer("base.lsmt"), layer("mid.lsmt"), layer("top.lsmt")];
    let (bytes, merged) = compact(&layers);
    assert!(disk(vec![merged]) == disk(layers));
    let reference = std::fs::metadata(golden().join("lsmt/merged.lsmt")).unwrap().len();
    assert!(bytes.len() as u64 <= reference, "{} bytes, the reference needs {reference}", bytes.len());
}

#[test]
fn upper_layers_compacted_still_hide_what_lies_below() {
    let (_, merged) = compact(&[layer("mid.lsmt"), layer("top.lsmt")]);
    assert!(
        disk(vec![layer("base.lsmt"), merged]) == Model::replay(&["base.ops", "mid.ops", "top.ops"]).bytes
    );
}

#[test]
fn a_sealed_upper_loses_its_dead_data() {
    let sealed = layer("upper-sealed.lsmt");
    let (bytes, compacted) = compact(std::slice::from_ref(&sealed));
    let dead = std::fs::metadata(golden().join("lsmt/upper-sealed.lsmt")).unwrap().len();
    assert!((bytes.len() as u64) < dead);
    assert!(disk(vec![compacted]) == disk(vec![sealed]));
}

#[test]
fn addresses_beyond_two_tebibytes_are_kept() {
    let (_, compacted) = compact(&[layer("huge.lsmt")]);
    let places = |layer: &Layer| -> Vec<_> {
        layer.mappings().iter().map(|m| (m.sector(), m.sectors(), m.is_zeroed())).collect()
    };
    assert_eq!(places(&compacted), places(&layer("huge.lsmt")));
}

#[test]
fn blocks_of_zeros_are_not_copied() {
    let directory = tempfile::tempdir().unwrap();
    let stack = crate::content::empty_disk(directory.path(), 1 << 20);
    stack.write_at(&[5; 4096], 0).unwrap();
    stack.write_at(&[0; 65536], 4096).unwrap();
    stack.write_at(&[6; 512], 4096 + 65536).unwrap();
    let sealed = stack.seal(&directory.path().join("sealed")).unwrap();
    let mut bytes = Vec::new();
    let committed = commit(std::slice::from_ref(&sealed), &CommitOptions::default(), &mut bytes).unwrap();
    assert_eq!((committed.data_bytes, committed.mappings), (4096 + 512, 3));
    assert!(disk(vec![Layer::open(Arc::new(bytes)).unwrap()]) == disk(vec![sealed]));
}

#[test]
fn labels_are_written_and_long_tags_refused() {
    let options =
        CommitOptions { uuid: Some(Uuid::from_u128(7)), parent_uuid: None, user_tag: vec![b'x'; 256] };
    let mut bytes = Vec::new();
    commit(&[layer("mid.lsmt")], &options, &mut bytes).unwrap();
    let compacted = Layer::open(Arc::new(bytes)).unwrap();
    assert_eq!(compacted.header().uuid, options.uuid);
    assert_eq!(compacted.header().parent_uuid, layer("mid.lsmt").header().parent_uuid);
    assert_eq!(compacted.header().user_tag, options.user_tag);
    let options = CommitOptions { user_tag: vec![0; 257], ..options };
    let refused = commit(&[layer("mid.lsmt")], &options, &mut Vec::new()).unwrap_err();
    assert!(matches!(refused, CommitError::UserTag { bytes: 257 }), "{refused}");
}

#[test]
fn a_truncated_source_is_an_error() {
    // The file shrinks after it was opened.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), std::fs::read(golden().join("lsmt/base.lsmt")).unwrap()).unwrap();
    let layer = Layer::open_file(file.path()).unwrap();
    file.as_file().set_len(100_000).unwrap();
    let error = commit(&[layer], &CommitOptions::default(), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, CommitError::Read { layer: 0, .. }), "{error}");
}
