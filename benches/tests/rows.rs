//! The bench as a program: what it prints, and what it refuses.
use bimetal_bench::Row;
use std::process::{Command, Output};

fn bench(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bimetal-bench"))
        .args(arguments.split_whitespace())
        .output()
        .unwrap()
}

/// The keys every row has, in this order.
const KEYS: [&str; 17] = [
    "name",
    "variant",
    "dtype",
    "threads",
    "cpu_ms",
    "cpu_ms_min",
    "wall_ms",
    "wall_ms_min",
    "flops",
    "bytes",
    "peak_gflops",
    "bandwidth_gbs",
    "peak_share",
    "bandwidth_share",
    "saved_bytes",
    "peak_rss_mb",
    "plans_compiled",
];

#[test]
fn quick_rows_are_whole() {
    let out = bench("--quick --json --only W1,W9 --variant train,fwd --dtype f32,f16");
    assert!(out.status.success(), "{out:?}");
    let text = String::from_utf8(out.stdout).unwrap();
    let rows: Vec<Row> = text
        .lines()
        .map(|line| {
            let mut at = 0;
            for key in KEYS {
                let found = line.find(&format!("\"{key}\":"));
                assert!(found >= Some(at), "{key} in {line}");
                at = found.unwrap();
            }
            serde_json::from_str(line).unwrap()
        })
        .collect();
    let names: Vec<_> = rows
        .iter()
        .map(|r| format!("{} {}", r.name, r.dtype))
        .collect();
    let expected = "W1 f32,W1 f16,W9 f32,W9 f32,W9 f16,W9 f16";
    assert_eq!(names.join(","), expected);
    for row in &rows {
        let (cpu, wall) = (row.cpu_ms.unwrap(), row.wall_ms.unwrap());
        assert!(cpu > 0.0 && wall > 0.0, "{row:?}");
        assert!(row.cpu_ms_min.unwrap() <= cpu && row.wall_ms_min.unwrap() <= wall);
        assert!(row.bytes.unwrap() > 0.0 && row.bandwidth_share.unwrap() > 0.0);
        assert_eq!(row.flops.is_some(), row.peak_share.is_some());
        assert!(row.host_us.unwrap() > 0.0, "{row:?}");
        assert_eq!((row.peer.as_str(), row.threads), ("bimetal", 1));
    }
    let train = &rows[0];
    assert_eq!(train.params, Some(669_706));
    assert_eq!(
        train.plans_compiled,
        Some(1),
        "a loop compiles its step once"
    );
    // Two hidden layers of 512 for 128 samples in f32, and little else.
    let hidden = 2.0 * 512.0 * 128.0 * 4.0;
    let saved = train.saved_bytes.unwrap();
    assert!((hidden..1.1 * hidden).contains(&saved), "{saved}");
    let half = rows[1].saved_bytes.unwrap() / saved;
    assert!(half < 0.55, "f16 keeps {half} of what f32 keeps");
}

#[test]
fn mistakes_are_refused_with_what_is_known() {
    let out = bench("--only W1,W99");
    assert!(!out.status.success());
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("`W99`") && said.contains("W1, W2"), "{said}");
}

#[test]
fn growth_is_a_table_with_exponents() {
    let out = bench("--quick --json --scaling");
    assert!(out.status.success(), "{out:?}");
    let text = String::from_utf8(out.stdout).unwrap();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let growth = lines.iter().filter(|l| !l["time_exponent"].is_null());
    let memory: Vec<(String, f64)> = growth
        .map(|l| {
            let series = format!(
                "{} of {}",
                l["axis"].as_str().unwrap(),
                l["of"].as_str().unwrap()
            );
            (series, l["memory_exponent"].as_f64().unwrap())
        })
        .collect();
    assert_eq!((lines.len(), memory.len()), (6 * 3, 6));
    // An update keeps nothing but what it updates.
    let (series, exponent) = &memory[5];
    assert_eq!(series, "parameters of W11");
    assert!((0.9..1.1).contains(exponent), "{exponent}");
}
