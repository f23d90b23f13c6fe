//! The shipped text.

use std::path::Path;

use bimetal_data::{CharText, Loader, Source};

#[test]
fn tiny_shakespeare() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data/tinyshakespeare.txt");
    let text = CharText::open(path).unwrap();
    assert_eq!((text.tokens().len(), text.vocab().len()), (1_115_394, 65));
    assert_eq!(
        text.vocab().to_string(),
        "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    );
    assert_eq!(
        text.vocab().decode(&text.tokens()[..14]).unwrap(),
        "First Citizen:"
    );

    let (train, valid) = text.split_at(text.tokens().len() * 9 / 10).unwrap();
    assert_eq!(valid.tokens().len(), 111_540);
    let mut loader = Loader::new(train.random_windows(64, 0).unwrap()).batch(12);
    let batch = loader.next_batch().unwrap().unwrap();
    let (x, y) = (
        batch.arrays[0].to_vec::<i32>().unwrap(),
        batch.arrays[1].to_vec::<i32>().unwrap(),
    );
    assert_eq!(batch.arrays[0].shape(), [12, 64]);
    assert!(
        x.chunks(64)
            .zip(y.chunks(64))
            .all(|(x, y)| x[1..] == y[..63])
    );
    assert_eq!(valid.windows(64).unwrap().len(), 1742);
}

#[test]
fn a_missing_or_binary_text_is_an_error_that_names_it() {
    assert!(
        CharText::open("no/such/text.txt")
            .unwrap_err()
            .to_string()
            .starts_with("no/such/text.txt: ")
    );
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("binary.txt");
    std::fs::write(&path, [0xff, 0xfe, 0]).unwrap();
    assert!(
        CharText::open(&path)
            .unwrap_err()
            .to_string()
            .contains("binary.txt")
    );
    std::fs::write(&path, "").unwrap();
    assert!(
        CharText::open(&path)
            .unwrap_err()
            .to_string()
            .contains("an empty file")
    );
}
