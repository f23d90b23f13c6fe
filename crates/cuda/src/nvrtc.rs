//! NVIDIA's compiler of kernels, which needs neither a device nor a driver.
use bimetal_tensor::{Error, Result};
use cudarc::nvrtc::{result, sys};
use std::ffi::{CStr, CString};
use std::path::Path;

/// The version of NVRTC that would be loaded, such as (13, 0), or none.
pub fn nvrtc_version() -> Option<(i32, i32)> {
    // SAFETY: libraries of these names are looked for and, if found, loaded.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: two numbers are written to places that outlive the call.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) }
        .result()
        .ok()?;
    Some((major, minor))
}

/// The cubin of CUDA C++ for an architecture such as `sm_90`; `include` is the folder of CUDA's headers.
///
/// # Errors
/// If NVRTC is not there, or with the compiler's log.
pub fn compile(source: &str, architecture: &str, include: &Path) -> Result<Vec<u8>> {
    let fail = |detail: String| Error::device("nvrtc", detail);
    if nvrtc_version().is_none() {
        return Err(fail(
            "NVRTC was not found (libnvrtc.so); see LD_LIBRARY_PATH".into(),
        ));
    }
    let source =
        CString::new(source).map_err(|_| fail("a kernel's source has a byte of zero".into()))?;
    let options = [
        format!("--gpu-architecture={architecture}"),
        format!("--include-path={}", include.display()),
        format!("--include-path={}", include.join("cccl").display()),
    ];
    let program =
        result::create_program(source.as_c_str(), None).map_err(|e| fail(e.to_string()))?;
    // SAFETY: the program was just created and is destroyed once, at the end; its log and its code are copied into memory of the sizes that it tells.
    unsafe {
        let compiled = result::compile_program(program, &options);
        let out = match compiled {
            Err(e) => Err(fail(match result::get_program_log(program) {
                Ok(log) => format!("{e}: {}", CStr::from_ptr(log.as_ptr()).to_string_lossy()),
                Err(_) => e.to_string(),
            })),
            Ok(()) => cubin(program).map_err(|e| fail(e.to_string())),
        };
        let _ = result::destroy_program(program);
        out
    }
}

/// # Safety
/// The program is compiled.
unsafe fn cubin(program: sys::nvrtcProgram) -> std::result::Result<Vec<u8>, result::NvrtcError> {
    let mut size = 0;
    // SAFETY: as the caller says; the buffer has the size that was told.
    unsafe {
        sys::nvrtcGetCUBINSize(program, &mut size).result()?;
        let mut bytes = vec![0u8; size];
        sys::nvrtcGetCUBIN(program, bytes.as_mut_ptr().cast()).result()?;
        Ok(bytes)
    }
}
