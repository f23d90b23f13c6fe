//! The same training on the CPU and on a graphics adapter, in a build that has both.
#![cfg(feature = "wgpu")]
mod common;

use common::{Scratch, program, run};
use serde_json::Value;
use std::path::Path;

/// Losses of the steps, and the accuracy at the end.
fn train(program: &Path, scratch: &Scratch, device: &str) -> (Vec<f64>, f64) {
    let figures = format!("{device}.json");
    // Twenty steps.
    let words = ["--epochs", "1", "--limit", "320", "--batch", "16"];
    let files = ["--device", device, "--out", device, "--json", &figures];
    let out = run(program, scratch, &[&words[..], &files].concat());
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{device}: {text}");
    let read = |name: &str| std::fs::read_to_string(scratch.0.join(name)).unwrap();
    let steps = read(&format!("{device}/steps.jsonl"));
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let losses = steps.lines().map(|l| value(l)["loss"].as_f64().unwrap());
    let figures = value(&read(&figures));
    assert_eq!(figures["policy"], "mixed_float16");
    assert_eq!(figures["skipped_steps"], 0);
    (losses.collect(), figures["test_accuracy"].as_f64().unwrap())
}

#[test]
fn mnist_trains_on_a_graphics_adapter_as_on_the_cpu() {
    if let Err(e) = bimetal::wgpu() {
        println!("skipped: mnist on wgpu: {e}");
        return;
    }
    let Some(mnist) = program("mnist") else {
        return;
    };
    let scratch = Scratch::new("mnist-wgpu");
    let (cpu, accuracy) = train(&mnist, &scratch, "cpu");
    let (gpu, other) = train(&mnist, &scratch, "wgpu");
    assert_eq!((cpu.len(), gpu.len()), (20, 20));
    for (i, (x, y)) in cpu.iter().zip(&gpu).enumerate() {
        assert!(
            (x - y).abs() <= 1e-2 * x,
            "step {}: {x} on the CPU, {y}",
            i + 1
        );
    }
    // It learns: 20 steps halve the distance to chance and more.
    assert!(cpu[19] < 0.9 * cpu[0] && gpu[19] < 0.9 * gpu[0], "{gpu:?}");
    assert!(
        (accuracy - other).abs() <= 0.01,
        "{accuracy} on the CPU, {other}"
    );
}
