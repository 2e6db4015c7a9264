//! The little that setup needs to know of ELF files: is a program static, and what does a kernel module need.
//!
//! Offsets are those of ELF64, little endian (System V ABI, "ELF-64 Object File Format").

const MACHINE_X86_64: u16 = 62;
const PROGRAM_INTERPRETER: u32 = 3;

/// An ELF64 little-endian x86-64 file in memory. Every access is checked against its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Elf<'a> {
    bytes: &'a [u8],
}

impl<'a> Elf<'a> {
    /// `None` when the bytes are not an ELF64 file for x86-64.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let elf = Self { bytes };
        let is_elf64_little = bytes.get(..6)? == b"\x7fELF\x02\x01";
        (is_elf64_little && elf.u16(18)? == MACHINE_X86_64).then_some(elf)
    }

    /// Whether the program names a dynamic loader, which no guest image can be trusted to have.
    pub(crate) fn needs_interpreter(&self) -> Option<bool> {
        let (table, entry_bytes, count) = (self.u64(32)?, u64::from(self.u16(54)?), self.u16(56)?);
        for index in 0..u64::from(count) {
            let header = table.checked_add(index * entry_bytes)?;
            if self.u32(usize::try_from(header).ok()?)? == PROGRAM_INTERPRETER {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Content of the first section with this name.
    pub(crate) fn section(&self, name: &str) -> Option<&'a [u8]> {
        let (table, entry_bytes) = (self.u64(40)?, u64::from(self.u16(58)?));
        let (count, names_index) = (self.u16(60)?, self.u16(62)?);
        let header = |index: u16| usize::try_from(table.checked_add(u64::from(index) * entry_bytes)?).ok();
        let content = |header: usize| {
            let (offset, size) = (self.u64(header.checked_add(24)?)?, self.u64(header.checked_add(32)?)?);
            let end = offset.checked_add(size)?;
            self.bytes.get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
        };
        let names = content(header(names_index)?)?;
        (0..count).find_map(|index| {
            let header = header(index)?;
            let own = names.get(usize::try_from(self.u32(header)?).ok()?..)?;
            let own = own.split(|&byte| byte == 0).next()?;
            (own == name.as_bytes()).then(|| content(header)).flatten()
        })
    }

    /// Value of `key` in a kernel module's `.modinfo`, a list of `key=value` strings that end in NUL.
    pub(crate) fn module_information(&self, key: &str) -> Option<&'a str> {
        self.section(".modinfo")?.split(|&byte| byte == 0).find_map(|entry| {
            let (own, value) = std::str::from_utf8(entry).ok()?.split_once('=')?;
            (own == key).then_some(value)
        })
    }

    fn array<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
    }

    fn u16(&self, offset: usize) -> Option<u16> {
        self.array(offset).map(u16::from_le_bytes)
    }

    fn u32(&self, offset: usize) -> Option<u32> {
        self.array(offset).map(u32::from_le_bytes)
    }

    fn u64(&self, offset: usize) -> Option<u64> {
        self.array(offset).map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_program_needs_no_interpreter() {
        let busybox = std::fs::read("/bin/busybox").expect("busybox-static is installed");
        assert_eq!(Elf::parse(&busybox).expect("an ELF file").needs_interpreter(), Some(false));
    }

    #[test]
    fn a_dynamic_program_needs_one() {
        let program = std::fs::read("/bin/cat").expect("cat is there");
        assert_eq!(Elf::parse(&program).expect("an ELF file").needs_interpreter(), Some(true));
    }

    #[test]
    fn a_truncated_file_is_never_read_past_its_end() {
        let busybox = std::fs::read("/bin/busybox").expect("busybox-static is installed");
        for length in (0..4096).chain([busybox.len() - 1]) {
            if let Some(elf) = Elf::parse(&busybox[..length]) {
                let _ = (elf.needs_interpreter(), elf.section(".text"), elf.module_information("depends"));
            }
        }
    }
}
