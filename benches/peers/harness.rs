// What the two Rust peers share: the command line, clocks, and a row as a line of JSON.
use std::time::Instant;

struct Arguments {
    name: String,
    threads: usize,
    seconds: f64,
}

fn arguments() -> Arguments {
    let words: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = words.iter().position(|w| w == name);
        at.and_then(|i| words.get(i + 1)).cloned()
    };
    Arguments {
        name: value("--name").expect("--name W1, W2 or W4"),
        threads: value("--threads").map_or(1, |n| n.parse().expect("a number of threads")),
        seconds: value("--seconds").map_or(1.0, |n| n.parse().expect("a number of seconds")),
    }
}

/// Numbers below `end`, all alike likely.
fn indices(count: usize, end: u64) -> impl Iterator<Item = u64> {
    let mut state = 1u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 33) % end
    })
}

fn cpu_ms() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 * 1e3 + t.tv_nsec as f64 / 1e6
}

fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)).and_then(|n| n.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}

/// Times a step by the rules of the bench and prints the row.
fn measure(peer: &str, arguments: &Arguments, parameters: usize, mut step: impl FnMut()) {
    let quick = arguments.seconds == 0.0;
    for _ in 0..if quick { 1 } else { 4 } {
        step();
    }
    let mut sample = || {
        let (wall, cpu) = (Instant::now(), cpu_ms());
        step();
        (cpu_ms() - cpu, wall.elapsed().as_secs_f64() * 1e3)
    };
    let estimate = sample().1;
    let count = (arguments.seconds * 1e3 / estimate).min(2000.0) as usize;
    let count = count.max(if quick { 2 } else { 5 });
    let (mut cpu, mut wall): (Vec<f64>, Vec<f64>) = (0..count).map(|_| sample()).unzip();
    cpu.sort_by(f64::total_cmp);
    wall.sort_by(f64::total_cmp);
    println!(
        "{{\"name\":\"{}\",\"variant\":\"train\",\"dtype\":\"f32\",\"threads\":{},\"cpu_ms\":{},\"cpu_ms_min\":{},\"wall_ms\":{},\"wall_ms_min\":{},\
         \"peak_rss_mb\":{},\"params\":{parameters},\"samples\":{count},\"rounds\":1,\"peer\":\"{peer}\"}}",
        arguments.name,
        arguments.threads,
        cpu[count / 2],
        cpu[0],
        wall[count / 2],
        wall[0],
        peak_rss_mb(),
    );
}
