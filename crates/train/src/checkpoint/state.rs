//! `state.safetensors`: the arrays.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use bimetal_tensor::DType;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::{Array, ArrayInfo};
use crate::{Error, Problem, Result};

/// The crate's format reserves this name for its own text map.
const RESERVED: &str = "__metadata__";

/// The arrays in the order of the file, and its header.
pub(super) struct Layout<'a> {
    header: Vec<u8>,
    arrays: Vec<&'a Array<'a>>,
}

impl<'a> Layout<'a> {
    /// Checks the arrays and lays them out.
    ///
    /// # Errors
    /// An array whose bytes do not match its shape and dtype, two arrays of one name, a reserved name.
    pub fn new(arrays: &'a [Array<'a>]) -> Result<Self> {
        check(arrays)?;
        let mut arrays: Vec<_> = arrays.iter().collect();
        // Wider elements first, as the format's own writer does: every array then starts aligned.
        arrays.sort_by(|a, b| {
            let widths = b.info.dtype.size().cmp(&a.info.dtype.size());
            widths.then_with(|| a.info.name.cmp(&b.info.name))
        });
        let mut end = 0;
        let mut infos = Vec::with_capacity(arrays.len());
        for array in &arrays {
            let start = end;
            end += array.data.len();
            let info = TensorInfo {
                dtype: to_file(array.info.dtype),
                shape: array.info.shape.clone(),
                data_offsets: (start, end),
            };
            infos.push((array.info.name.clone(), info));
        }
        let text = HashMap::from([("producer".to_string(), "bimetal".to_string())]);
        let header = Metadata::new(Some(text), infos).map_err(|e| {
            Error::invalid(format!("cannot lay out the arrays of a checkpoint: {e}"))
        })?;
        let mut header = serde_json::to_vec(&header).map_err(|e| {
            Error::invalid(format!("cannot encode the header of a checkpoint: {e}"))
        })?;
        header.resize(header.len().next_multiple_of(8), b' ');
        Ok(Self { header, arrays })
    }

    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&(self.header.len() as u64).to_le_bytes())?;
        out.write_all(&self.header)?;
        for array in &self.arrays {
            out.write_all(&array.data)?;
        }
        Ok(())
    }
}

fn check(arrays: &[Array<'_>]) -> Result<()> {
    let mut names = HashSet::with_capacity(arrays.len());
    for Array { info, data } in arrays {
        if info.name == RESERVED || !names.insert(info.name.as_str()) {
            let why = if info.name == RESERVED {
                "is reserved"
            } else {
                "is there twice"
            };
            return Err(Error::invalid(format!(
                "array name `{}` {why}; every array of a checkpoint needs a name of its own",
                info.name
            )));
        }
        if info.byte_len() != Some(data.len()) {
            return Err(Error::invalid(format!(
                "array {info} comes with {} bytes, its shape and dtype take {}",
                data.len(),
                info.byte_len()
                    .map_or("more than fit memory".into(), |n| n.to_string())
            )));
        }
    }
    Ok(())
}

/// Where each array lies in the bytes of a file.
pub(super) fn parse(file: &Path, bytes: &[u8]) -> Result<Vec<(ArrayInfo, Range<usize>)>> {
    let content = |why: String| Error::corrupt(file, Problem::Content(why));
    let (header_len, header) = safetensors::SafeTensors::read_metadata(bytes)
        .map_err(|e| content(format!("not a safetensors file: {e}")))?;
    let base = 8 + header_len;
    let mut arrays = Vec::new();
    for (name, info) in header.tensors() {
        let Some(dtype) = from_file(info.dtype) else {
            return Err(content(format!(
                "array `{name}` has the unsupported dtype {:?}",
                info.dtype
            )));
        };
        let (start, end) = info.data_offsets;
        arrays.push((
            ArrayInfo::new(name, dtype, info.shape.clone()),
            base + start..base + end,
        ));
    }
    arrays.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    Ok(arrays)
}

fn to_file(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::U32 => Dtype::U32,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F8E4M3 => Dtype::F8_E4M3,
        DType::F8E5M2 => Dtype::F8_E5M2,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}

fn from_file(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::U32 => DType::U32,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::F8_E4M3 => DType::F8E4M3,
        Dtype::F8_E5M2 => DType::F8E5M2,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        _ => return None,
    })
}
