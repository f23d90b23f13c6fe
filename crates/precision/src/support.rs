//! What a device does with the dtypes of a policy.
use crate::Policy;
use bimetal_tensor::{DType, Device, Support};
use std::fmt;

/// Which dtypes and matrix units a device has.
#[derive(Clone, Debug, PartialEq)]
pub struct PrecisionSupport {
    /// The device's name.
    pub device: String,
    /// The backend's name, such as `cpu`.
    pub kind: &'static str,
    /// Every dtype and how the device computes it.
    pub dtypes: Vec<(DType, Support)>,
    /// Dtypes that matrix units multiply; empty if there are none.
    pub matrix_units: Vec<DType>,
}

/// Which dtypes and matrix units `device` has.
pub fn precision_support(device: &Device) -> PrecisionSupport {
    let info = device.info();
    PrecisionSupport {
        device: info.name.clone(),
        kind: info.kind,
        dtypes: ALL.iter().map(|&d| (d, info.support(d))).collect(),
        matrix_units: info.matrix_units.clone(),
    }
}

const ALL: [DType; 11] = [
    DType::Bool,
    DType::U8,
    DType::U32,
    DType::I32,
    DType::I64,
    DType::F8E4M3,
    DType::F8E5M2,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

impl PrecisionSupport {
    /// How the device computes `dtype`.
    pub fn support(&self, dtype: DType) -> Support {
        self.dtypes
            .iter()
            .find(|(d, _)| *d == dtype)
            .map_or(Support::No, |(_, s)| *s)
    }

    /// Whether matrix work in `dtype` is likely to be slower than in f32: no matrix unit takes it and it is not computed in hardware.
    pub fn is_slow(&self, dtype: DType) -> bool {
        dtype.is_float()
            && !matches!(dtype, DType::F32 | DType::F64)
            && !self.matrix_units.contains(&dtype)
            && self.support(dtype) != Support::Native
    }
}

impl fmt::Display for PrecisionSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({})", self.device, self.kind)?;
        for (dtype, support) in &self.dtypes {
            let how = match support {
                Support::Native => "in hardware",
                Support::Emulated => "by conversion",
                Support::No => "not at all",
            };
            let unit = if self.matrix_units.contains(dtype) {
                ", matrix unit"
            } else {
                ""
            };
            writeln!(f, "  {:<8} {how}{unit}", dtype.to_string())?;
        }
        Ok(())
    }
}

/// A warning where `policy` computes in a dtype in which `device` is likely to be slower than in f32; `None` where all is well.
pub fn warn_if_slow(device: &Device, policy: &Policy) -> Option<String> {
    let support = precision_support(device);
    let dtype = policy.compute;
    if !support.is_slow(dtype) {
        return None;
    }
    let fast: Vec<String> = ALL
        .iter()
        .filter(|d| d.is_float() && **d != DType::F64 && !support.is_slow(**d))
        .map(DType::to_string)
        .collect();
    Some(format!(
        "the policy `{policy}` computes in {dtype}, which {} ({}) has only by conversion: it saves memory but is likely to be slower than \
         f32; in hardware it has {}",
        support.device,
        support.kind,
        fast.join(", ")
    ))
}
