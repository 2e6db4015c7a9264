//! The golden ext4 trees: what two layers must look like when mounted.

use std::path::Path;

use crate::support::mounted::{Mounted, assert_sound};
use crate::support::{Bench, golden};

/// Lines of a golden tree in the order of [`Mounted::tree`]. Directory sizes and link counts are not compared there; a
/// symbolic link's size is that of its target.
fn expected(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines: Vec<String> =
        text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(str::to_owned).collect();
    lines.sort_by(|left, right| left.split('\t').next().cmp(&right.split('\t').next()));
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn golden_layers_become_the_golden_trees() {
    let golden = golden().join("overlaybd/ext4");
    let layers = ["layer1.tar", "layer2.tar"].map(|name| std::fs::read(golden.join(name)).unwrap());
    let bench = Bench::new();
    let image = bench.import_layers(&layers).await.unwrap();
    assert_eq!(image.layer_paths.len(), 2);
    for (layer, tree) in image.layer_paths.iter().zip(["tree-1.tsv", "tree-2.tsv"]) {
        assert_sound(layer);
        similar(&Mounted::new(layer).tree(), &expected(&golden.join(tree)), tree);
    }
    bench.assert_clean();
}

fn similar(found: &[String], expected: &[String], tree: &str) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected, "{tree}");
    }
    assert_eq!(found.len(), expected.len(), "{tree}: number of entries");
}
