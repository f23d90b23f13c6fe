//! What opening says where something is missing, and what is generated without anything.
use bimetal_cubecl::matrix_kernels;
use bimetal_cuda::{cuda, cuda_properties, cuda_source, offline_units};
use bimetal_tensor::DType;

#[test]
fn a_machine_without_a_driver_is_told_so() {
    match cuda_properties(0) {
        Ok(p) => println!("skipped: there is a device, {}", p.name),
        Err(_) => {
            let text = cuda(0).map(|_| ()).unwrap_err().to_string();
            assert!(text.contains("no NVIDIA driver was found"), "{text}");
            assert!(text.contains("use the CPU device"), "{text}");
        }
    }
}

#[test]
fn units_follow_the_compute_capability() {
    assert_eq!(offline_units(70).dtypes(), [DType::F16]);
    assert_eq!(offline_units(80).dtypes(), [DType::F16, DType::BF16]);
    assert_eq!(offline_units(80).tf32, Some([16, 16, 8]));
    assert_eq!(
        offline_units(90).dtypes(),
        [DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2]
    );
}

#[test]
fn every_matrix_kernel_becomes_cuda_source() {
    let kernels = matrix_kernels(&offline_units(90));
    for kind in ["f16", "bf16", "tf32", "f8"] {
        assert!(kernels.iter().any(|k| k.kind == kind), "{kind}");
    }
    for kernel in kernels {
        let source = cuda_source(&kernel, 90).unwrap();
        let instruction = if kernel.kind == "f8" {
            "mma.sync"
        } else {
            "mma_sync"
        };
        assert!(source.contains(instruction), "{}:\n{source}", kernel.name);
    }
}
