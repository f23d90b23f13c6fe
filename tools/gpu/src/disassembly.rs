//! What is in a cubin, as NVIDIA's disassembler tells it.
use std::path::Path;
use std::process::Command;

/// The instructions and the memory of a kernel.
pub struct Code {
    /// Matrix instructions on 16-bit floats and TF32.
    pub hmma: usize,
    /// Matrix instructions on 8-bit floats.
    pub qmma: usize,
    /// The first matrix instruction in full.
    pub example: String,
    /// Conversions that unpack 8-bit floats.
    pub unpacked: usize,
    /// Registers of a thread.
    pub registers: usize,
    /// Loads and stores of registers that did not fit.
    pub spills: usize,
}

fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|e| format!("cannot run `{program}`: {e}; it comes with CUDA, or by `pip install nvidia-cuda-{program}`"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "`{program}` failed: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// Reads a cubin.
pub fn read(cubin: &Path) -> Result<Code, String> {
    let text = output(Command::new("nvdisasm").arg("-c").arg(cubin))?;
    let usage = output(Command::new("cuobjdump").arg("-res-usage").arg(cubin))?;
    Ok(count(&text, &usage))
}

fn count(text: &str, usage: &str) -> Code {
    let has = |what: &str| text.lines().filter(|l| l.contains(what)).count();
    let first = text
        .lines()
        .find(|l| l.contains("HMMA.") || l.contains("QMMA."));
    let words = first.unwrap_or_default().split_whitespace();
    let registers = usage
        .split_whitespace()
        .filter_map(|w| w.strip_prefix("REG:")?.parse().ok())
        .max();
    Code {
        hmma: has("HMMA."),
        qmma: has("QMMA."),
        example: words
            .filter(|w| w.contains("MMA."))
            .collect::<Vec<_>>()
            .join(" "),
        unpacked: text
            .lines()
            .filter(|l| l.contains("F2FP") && l.contains("UNPACK"))
            .count(),
        registers: registers.unwrap_or(0),
        spills: has(" STL") + has(" LDL"),
    }
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn instructions_are_counted_by_kind() {
        let text = "
        /*0a00*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0a10*/                   HMMA.16816.F32 R4, R8, R14, R4 ;
        /*0a20*/                   QMMA.16832.F32.E4M3.E4M3 R4, R8, R12, R4 ;
        /*0a30*/                   F2FP.F16.E4M3.UNPACK_B R2, R3 ;
        /*0a40*/                   STL [R1], R4 ;
        /*0a50*/                   LDL.LU R4, [R1] ;";
        let usage = " Function kernel:\n  REG:128 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:568";
        let code = count(text, usage);
        assert_eq!(
            (
                code.hmma,
                code.qmma,
                code.unpacked,
                code.spills,
                code.registers
            ),
            (2, 1, 1, 2, 128)
        );
        assert_eq!(code.example, "HMMA.16816.F32");
    }
}
