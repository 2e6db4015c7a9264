//! The words on the kernel command line that are meant for us.

use std::net::IpAddr;

/// Longest host name the kernel takes (`__NEW_UTS_LEN`), and longest DNS label.
const HOSTNAME_BYTES_MAX: usize = 63;
/// A resolver reads no more name servers than this (`MAXNS` in resolv.h).
const NAME_SERVERS_MAX: usize = 3;

/// The kernel command line.
#[derive(Debug, Default)]
pub(crate) struct KernelWords(String);

impl KernelWords {
    /// Reads `/proc/cmdline`; a missing file means no words.
    pub(crate) fn read() -> Self {
        Self(std::fs::read_to_string("/proc/cmdline").unwrap_or_default())
    }

    fn value(&self, key: &str) -> Option<&str> {
        self.0.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    /// `agentenv.hostname=NAME`, when it is a usable host name; else a fixed one.
    pub(crate) fn hostname(&self) -> &str {
        self.value("agentenv.hostname").filter(|name| is_hostname(name)).unwrap_or("sandbox")
    }

    /// `agentenv.dns=ADDRESS,ADDRESS`; entries that are no addresses are left out.
    pub(crate) fn dns_servers(&self) -> Vec<IpAddr> {
        let Some(list) = self.value("agentenv.dns") else { return Vec::new() };
        list.split(',').filter_map(|address| address.parse().ok()).take(NAME_SERVERS_MAX).collect()
    }
}

fn is_hostname(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    !name.is_empty()
        && name.len() <= HOSTNAME_BYTES_MAX
        && name.bytes().all(allowed)
        && !name.starts_with(['-', '.'])
        && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_hostname_and_name_servers() {
        let words = KernelWords(
            "console=ttyS0 agentenv.hostname=abc123 agentenv.dns=1.1.1.1,2606:4700::1 quiet\n".into(),
        );
        assert_eq!(words.hostname(), "abc123");
        assert_eq!(
            words.dns_servers(),
            ["1.1.1.1".parse::<IpAddr>().unwrap(), "2606:4700::1".parse().unwrap()]
        );
    }

    #[test]
    fn falls_back_when_words_are_missing_or_unusable() {
        assert_eq!(KernelWords::default().hostname(), "sandbox");
        assert_eq!(KernelWords("agentenv.hostname=-x".into()).hostname(), "sandbox");
        assert_eq!(KernelWords("agentenv.hostname=a/b".into()).hostname(), "sandbox");
        assert_eq!(KernelWords("xagentenv.hostname=no agentenv.hostnamex=no".into()).hostname(), "sandbox");
        assert!(KernelWords("agentenv.dns=nonsense,,".into()).dns_servers().is_empty());
    }

    #[test]
    fn keeps_no_more_name_servers_than_a_resolver_reads() {
        let words = KernelWords("agentenv.dns=1.1.1.1,1.1.1.2,1.1.1.3,1.1.1.4".into());
        assert_eq!(words.dns_servers().len(), 3);
    }
}
