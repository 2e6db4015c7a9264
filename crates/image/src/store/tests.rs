use super::*;

fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

fn publish(store: &LayerStore, chain: &Digest, parent: Option<&LayerRecord>) -> LayerRecord {
    let partial = store.partial_path(chain);
    fs::write(&partial, chain.hex()).unwrap();
    store.publish(&partial, chain, parent, &digest("diff"), 1 << 30).unwrap()
}

fn open(directory: &Path) -> Arc<LayerStore> {
    Arc::new(LayerStore::open(directory).unwrap())
}

#[test]
fn chain_ids_depend_on_everything_below_and_on_the_size() {
    let base = chain_id(None, &digest("a"), 1 << 30);
    assert_eq!(base, chain_id(None, &digest("a"), 1 << 30));
    let others = [
        chain_id(None, &digest("b"), 1 << 30),
        chain_id(None, &digest("a"), 1 << 31),
        chain_id(Some(&base), &digest("a"), 1 << 30),
    ];
    assert!(others.iter().all(|other| *other != base));
}

#[test]
fn a_published_layer_is_found_again_after_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let chain = digest("chain");
    let record = publish(&open(directory.path()), &chain, None);
    let store = open(directory.path());
    let mut pins = LayerPins::new(Arc::clone(&store));
    assert_eq!(store.find(&chain, None, &mut pins).unwrap(), Some(record));
}

#[test]
fn a_layer_made_on_another_conversion_of_its_parent_is_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let (base, top) = (digest("base"), digest("top"));
    let first = publish(&store, &base, None);
    publish(&store, &top, Some(&first));
    let again = publish(&store, &base, None);
    let mut pins = LayerPins::new(Arc::clone(&store));
    assert!(store.find(&top, Some(&first), &mut pins).unwrap().is_some());
    assert!(store.find(&top, Some(&again), &mut pins).unwrap().is_none());
}

#[test]
fn a_truncated_layer_is_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let chain = digest("chain");
    publish(&store, &chain, None);
    fs::write(store.layer_path(&chain), "short").unwrap();
    let mut pins = LayerPins::new(Arc::clone(&store));
    assert!(store.find(&chain, None, &mut pins).unwrap().is_none());
}

#[test]
fn collecting_keeps_named_layers_what_is_below_them_and_pinned_ones() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let [base, kept, pinned, loose] = ["base", "kept", "pinned", "loose"].map(digest);
    let record = publish(&store, &base, None);
    publish(&store, &kept, Some(&record));
    publish(&store, &pinned, None);
    publish(&store, &loose, Some(&record));
    let foreign = directory.path().join("notes.txt");
    fs::write(&foreign, "mine").unwrap();
    let mut pins = LayerPins::new(Arc::clone(&store));
    pins.add(&pinned);

    let collected = store.collect(&[store.layer_path(&kept)]).unwrap();
    assert_eq!(collected, (1, 64));
    let mut left: Vec<bool> = Vec::new();
    for chain in [&base, &kept, &pinned, &loose] {
        left.push(store.layer_path(chain).exists());
    }
    assert_eq!(left, [true, true, true, false]);
    assert!(foreign.exists(), "a foreign file was removed");

    drop(pins);
    assert_eq!(store.collect(&[]).unwrap().0, 3);
}

#[test]
fn a_second_owner_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let _first = open(directory.path());
    assert!(LayerStore::open(directory.path()).is_err());
}

#[test]
fn partial_files_of_an_interrupted_import_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let partial = open(directory.path()).partial_path(&digest("chain"));
    fs::write(&partial, "half").unwrap();
    let _store = open(directory.path());
    assert!(!partial.exists());
}
