//! Steps that run on the host: a user's operation without a GPU kernel.
use super::Launch;
use crate::plan::Cx;
use bimetal_tensor::ErrorKind;
use bimetal_tensor::graph::{CustomHandle, HostView, HostViewMut};
use bimetal_tensor::plan::Dense;
use cubecl::bytes::Bytes;

/// A user's operation: its inputs are read, its results written. That waits for the device.
pub(super) struct Custom {
    custom: CustomHandle,
    inputs: Vec<Dense>,
    outputs: Vec<Dense>,
}

impl Custom {
    pub(super) fn new(custom: &CustomHandle, inputs: &[Dense], outputs: &[Dense]) -> Custom {
        Custom {
            custom: custom.clone(),
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
        }
    }
}

fn bytes(d: &Dense) -> usize {
    d.shape.numel() * d.dtype.size()
}

impl Launch for Custom {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        let handles = self
            .inputs
            .iter()
            .map(|d| cx.handle(d.buf as usize).clone());
        let read = cx.device.read(self.custom.0.name(), handles.collect());
        let read = read.map_err(|e| e.kind().clone())?;
        let inputs: Vec<HostView<'_>> = self
            .inputs
            .iter()
            .zip(&read)
            .map(|(d, b)| HostView {
                shape: d.shape,
                dtype: d.dtype,
                bytes: &b[..bytes(d)],
            })
            .collect();
        let mut results: Vec<Vec<u8>> = self.outputs.iter().map(|d| vec![0; bytes(d)]).collect();
        let mut outputs: Vec<HostViewMut<'_>> = self
            .outputs
            .iter()
            .zip(&mut results)
            .map(|(d, bytes)| HostViewMut {
                shape: d.shape,
                dtype: d.dtype,
                bytes,
            })
            .collect();
        self.custom
            .0
            .forward(&inputs, &mut outputs)
            .map_err(|e| e.kind().clone())?;
        for (d, mut bytes) in self.outputs.iter().zip(results) {
            bytes.resize(4 * cx.words(d.buf as usize), 0);
            let to = cx.handle(d.buf as usize);
            cx.device.client.write(to, Bytes::from_bytes_vec(bytes));
        }
        Ok(())
    }

    fn is_on_host(&self) -> bool {
        true
    }

    fn buffers(&self) -> Vec<usize> {
        let all = self.inputs.iter().chain(&self.outputs);
        all.map(|d| d.buf as usize).collect()
    }
}
