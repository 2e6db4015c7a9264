//! Damaged files are refused, each for the reason it is damaged.

use std::fs::File;
use std::sync::Arc;

use overlaybd::{EntryProblem, Layer, LayerError, SectionProblem, Stack};

use crate::content::{golden, sha256, table};

fn refusal(name: &str) -> LayerError {
    Layer::open(Arc::new(File::open(golden().join("bad").join(name)).unwrap())).unwrap_err()
}

macro_rules! refused {
    ($test:ident, $file:literal, $pattern:pat) => {
        #[test]
        fn $test() {
            let error = refusal($file);
            assert!(matches!(error, $pattern), "{error:?}");
        }
    };
}

refused!(wrong_first_magic, "header-magic0.lsmt", LayerError::Header(SectionProblem::FirstMagic));
refused!(wrong_second_magic, "header-magic1.lsmt", LayerError::Header(SectionProblem::SecondMagic));
refused!(
    header_marked_as_trailer,
    "header-is-trailer-flag.lsmt",
    LayerError::Header(SectionProblem::NotAHeader)
);
refused!(wrong_magic_in_trailer, "trailer-magic0.lsmt", LayerError::Trailer(SectionProblem::FirstMagic));
refused!(trailer_not_sealed, "trailer-not-sealed.lsmt", LayerError::Trailer(SectionProblem::NotSealed));
refused!(
    trailer_marked_as_header,
    "trailer-is-header-flag.lsmt",
    LayerError::Trailer(SectionProblem::NotATrailer)
);
refused!(trailer_of_an_index_file, "trailer-index-type.lsmt", LayerError::Trailer(SectionProblem::NotAData));
refused!(index_reaching_past_trailer, "index-size-past-trailer.lsmt", LayerError::IndexOutOfBounds { .. });
refused!(
    index_of_huge_size,
    "index-size-huge.lsmt",
    LayerError::IndexTooLarge { .. } | LayerError::IndexOutOfBounds { .. }
);
refused!(index_past_end_of_file, "index-offset-past-eof.lsmt", LayerError::IndexOutOfBounds { .. });
refused!(
    index_out_of_order,
    "index-disordered.lsmt",
    LayerError::Entry { problem: EntryProblem::NotAfterPrevious { .. }, .. }
);
refused!(
    overlapping_entries,
    "index-overlapping.lsmt",
    LayerError::Entry { problem: EntryProblem::NotAfterPrevious { .. }, .. }
);
refused!(
    data_in_header,
    "moffset-in-header.lsmt",
    LayerError::Entry { problem: EntryProblem::DataInHeader, .. }
);
refused!(
    data_beyond_end,
    "moffset-beyond-data.lsmt",
    LayerError::Entry { problem: EntryProblem::DataBeyondEnd { .. }, .. }
);
refused!(one_byte_missing, "truncated-1.lsmt", LayerError::Trailer(SectionProblem::FirstMagic));
refused!(one_sector_missing, "truncated-512.lsmt", LayerError::Trailer(SectionProblem::FirstMagic));
refused!(nothing_but_a_header, "only-header.lsmt", LayerError::TooShort { size_bytes: 4096 });
refused!(empty_file, "zero-length.lsmt", LayerError::TooShort { size_bytes: 0 });
refused!(
    bytes_after_the_trailer,
    "trailing-garbage-512.lsmt",
    LayerError::Trailer(SectionProblem::FirstMagic)
);

#[test]
fn every_damaged_plain_layer_of_the_set_is_covered_and_refused() {
    let names: Vec<String> = table("bad/bad.tsv").into_iter().map(|line| line[0].clone()).collect();
    let damaged = names.iter().filter(|name| name.ends_with(".lsmt") && *name != "good.lsmt");
    assert_eq!(
        damaged.map(|name| refusal(name).to_string()).inspect(|text| assert!(!text.is_empty())).count(),
        19
    );
}

#[test]
fn the_undamaged_one_opens() {
    let layer = Layer::open_file(&golden().join("bad/good.lsmt")).unwrap();
    assert_eq!((layer.virtual_size_bytes(), layer.mappings().len()), (65536, 4));
    let mut disk = vec![0; 65536];
    Stack::open(vec![layer], None).unwrap().read_at(&mut disk, 0).unwrap();
    let line = table("bad/bad.tsv").into_iter().find(|line| line[0] == "good.lsmt").unwrap();
    assert!(line[2].ends_with(&sha256(&disk)));
}

#[test]
fn errors_of_a_named_file_name_it() {
    let error = Layer::open_file(&golden().join("bad/only-header.lsmt")).unwrap_err();
    assert!(error.to_string().contains("bad/only-header.lsmt"), "{error}");
}
