//! The device that a task runs on.
use bimetal_cuda::{CudaProperties, cuda_properties};
use bimetal_tensor::Device;
use serde_json::{Value, json};

/// The backends of this program.
const BACKENDS: &[&str] = &[
    "cuda",
    #[cfg(feature = "wgpu")]
    "wgpu",
];

/// A backend that was chosen, and what its driver says of the device.
pub struct Target {
    backend: String,
    cuda: Option<CudaProperties>,
}

impl Target {
    /// The first device of a backend; an error says why there is none.
    pub fn find(backend: &str) -> Result<Target, String> {
        if !BACKENDS.contains(&backend) {
            return Err(format!(
                "`--backend {backend}`: this program has {}",
                BACKENDS.join(", ")
            ));
        }
        let target = Target {
            backend: backend.into(),
            cuda: match backend {
                "cuda" => Some(cuda_properties(0).map_err(|e| e.to_string())?),
                _ => None,
            },
        };
        target.open()?;
        Ok(target)
    }

    /// Opens it, with counters of memory of its own.
    pub fn open(&self) -> Result<Device, String> {
        match self.backend.as_str() {
            #[cfg(feature = "wgpu")]
            "wgpu" => bimetal_wgpu::wgpu(),
            _ => bimetal_cuda::cuda(0),
        }
        .map_err(|e| e.to_string())
    }

    /// As the results name it.
    pub fn json(&self) -> Result<Value, String> {
        let device = self.open()?;
        let info = device.info();
        let mut found = json!({
            "name": info.name, "backend": self.backend, "architecture": info.architecture,
            "matrix_units": info.matrix_units.iter().map(ToString::to_string).collect::<Vec<_>>(),
        });
        if let Some(p) = &self.cuda {
            found["name"] = json!(p.name);
            found["sm"] = json!(p.sm);
            found["tensor_cores"] = json!(p.tensor_cores);
            found["memory"] = json!(p.memory);
            found["processors"] = json!(p.processors);
            found["clock_khz"] = json!(p.clock_khz);
            found["driver"] = json!(p.driver);
        }
        Ok(found)
    }

    /// Dense operations a second of all multiprocessors at their full clock for products of this kind (`f32`, `tf32`, `f16`, `bf16`, `f8`, or a dtype's name), where they are known.
    pub fn peak(&self, kind: &str) -> Option<f64> {
        let p = self.cuda.as_ref()?;
        Some(per_clock(p.sm, kind) * p.processors as f64 * p.clock_khz as f64 * 1e3)
    }
}

/// Dense operations a clock of one multiprocessor by instructions of this kind, from NVIDIA's white papers of the architectures.
fn per_clock(sm: u32, kind: &str) -> f64 {
    let f16 = match sm {
        100..=109 => 8192.0,
        90 => 4096.0,
        80 => 2048.0,
        _ => 1024.0,
    };
    match kind {
        "f8" => 2.0 * f16,
        "tf32" => f16 / 2.0,
        "f32" | "float32" => 256.0,
        _ => f16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NVIDIA's data sheet of the H200 (SXM): 989 TFLOP/s in f16, 1979 in f8, 67 in f32, all dense.
    #[test]
    fn peaks_are_those_of_data_sheets() {
        let target = Target {
            backend: "cuda".into(),
            cuda: Some(CudaProperties {
                name: "NVIDIA H200".into(),
                sm: 90,
                tensor_cores: true,
                memory: 141 << 30,
                processors: 132,
                clock_khz: 1_830_000,
                driver: 13000,
            }),
        };
        for (kind, teraflops) in [
            ("f16", 989.0),
            ("f8", 1979.0),
            ("tf32", 495.0),
            ("f32", 62.0),
        ] {
            let found = target.peak(kind).unwrap() / 1e12;
            assert!((found / teraflops - 1.0).abs() < 0.01, "{kind}: {found}");
        }
    }
}
