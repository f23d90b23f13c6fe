//! In-memory data sets and their adapters.

use bimetal_data::{Array, Dataset, ErrorKind, Field, InMemory, Source};
use bimetal_dtype::DType;

fn range(from: i32, to: i32) -> InMemory {
    let values: Vec<i32> = (from..to).collect();
    let images: Vec<u8> = values.iter().flat_map(|v| [*v as u8, 0]).collect();
    InMemory::new(vec![
        Array::from(values.clone()),
        Array::from_vec(images, &[values.len(), 2]).unwrap(),
    ])
    .unwrap()
}

fn ids(data: &impl Source) -> Vec<i32> {
    data.gather(&(0..data.len()).collect::<Vec<_>>()).unwrap()[0]
        .to_vec()
        .unwrap()
}

#[test]
fn take_range_split_concat() {
    let data = range(0, 10).dataset();
    assert_eq!(ids(&data.clone().take(3)), [0, 1, 2]);
    assert_eq!(data.clone().take(30).len(), 10);
    assert_eq!(ids(&data.clone().range(7..9).unwrap()), [7, 8]);
    let (head, tail) = data.clone().split_at(6).unwrap();
    assert_eq!(
        (ids(&head), ids(&tail)),
        ((0..6).collect(), (6..10).collect())
    );
    let swapped: Dataset = tail.concat(head).unwrap();
    assert_eq!(ids(&swapped), [6, 7, 8, 9, 0, 1, 2, 3, 4, 5]);
    let mixed = swapped.gather(&[9, 0, 4, 3, 3]).unwrap();
    assert_eq!(mixed[0].to_vec::<i32>().unwrap(), [5, 6, 0, 9, 9]);
    assert_eq!(
        mixed[1].to_vec::<u8>().unwrap(),
        [5, 0, 6, 0, 0, 0, 9, 0, 9, 0]
    );
    assert_eq!(
        ids(&swapped.range(3..5).unwrap().concat(range(50, 51)).unwrap()),
        [9, 0, 50]
    );
}

#[test]
fn indices_outside_are_errors_everywhere() {
    let data = range(0, 10).dataset();
    let parts = [
        data.clone(),
        data.clone().take(4),
        data.clone().take(2).concat(data.clone().take(2)).unwrap(),
    ];
    for part in parts {
        let len = part.len();
        let e = part.gather(&[0, len]).unwrap_err();
        assert!(
            matches!(e.kind(), ErrorKind::Index { index, len: l } if *index == len && *l == len),
            "{e}"
        );
    }
    let e = data.clone().range(5..11).unwrap_err();
    assert!(matches!(
        e.kind(),
        ErrorKind::Range {
            start: 5,
            end: 11,
            len: 10
        }
    ));
    assert!(data.clone().split_at(11).is_err());
    assert!(data.clone().split_at(10).unwrap().1.is_empty());
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = data.range(3..2);
    assert!(backwards.is_err());
}

#[test]
fn map_normalises_and_knows_its_fields() {
    let data = range(0, 256)
        .map(|arrays| Ok(vec![arrays[1].map_f32(|v| v / 255.0)?, arrays[0].clone()]))
        .unwrap();
    assert_eq!(
        data.fields(),
        [Field::new(DType::F32, &[2]), Field::new(DType::I32, &[])]
    );
    let got = data.gather(&[255, 51]).unwrap();
    assert_eq!(got[0].to_vec::<f32>().unwrap(), [1.0, 0.0, 0.2, 0.0]);
    assert_eq!(got[1].to_vec::<i32>().unwrap(), [255, 51]);
    assert!(range(0, 0).map(Ok).is_err());
    // A function whose result depends on how many rows it sees is refused.
    let odd = range(0, 9).map(|mut a| {
        if a[0].rows() > 1 {
            a.pop();
        }
        Ok(a)
    });
    assert!(
        odd.unwrap()
            .gather(&[0, 1])
            .unwrap_err()
            .to_string()
            .contains("expected 2 arrays, found 1")
    );
}

#[test]
fn arrays_that_do_not_belong_together_are_errors() {
    let e = InMemory::new(vec![
        Array::from(vec![1i32; 3]),
        Array::from(vec![1.0f32; 4]),
    ])
    .unwrap_err();
    assert_eq!(
        e.to_string(),
        "array 1: expected first dimension 3, as array 0 has, found shape [4]"
    );
    assert!(InMemory::new(vec![]).is_err());
    assert!(InMemory::new(vec![Array::from_vec(vec![1i32], &[]).unwrap()]).is_err());
    let e = range(0, 3)
        .concat(InMemory::new(vec![Array::from(vec![1i32])]).unwrap())
        .unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Mismatch { .. }));
}
