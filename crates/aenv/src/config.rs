//! The configuration file, `/etc/agentenv/config.toml`, and the environment that overrides it.
//!
//! A key `name` of a table `[table]` is overridden by `AENV_TABLE_NAME`; a key outside tables by `AENV_NAME`. Lists are
//! separated by commas there. A key or table that does not exist is refused, so that a misspelt setting cannot silently
//! leave its default in force.

mod keys;
mod network_address;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

pub(crate) use network_address::NetworkAddress;

/// Where the file is when nobody says.
pub(crate) const DEFAULT_PATH: &str = "/etc/agentenv/config.toml";
/// A configuration is a few hundred bytes; a file much larger is something else.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Everything that can be set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Address of the HTTP interface.
    pub(crate) listen: SocketAddr,
    /// Domain under which `<port>-<sandbox>.<domain>` reaches a sandbox; may hold a port. `localhost` and the port of
    /// `listen` when absent.
    pub(crate) domain: Option<String>,
    /// What has to survive a restart of the machine.
    pub(crate) data_dir: PathBuf,
    /// Sockets and mounts.
    pub(crate) runtime_dir: PathBuf,
    /// File with the API key; `api-key` in `data_dir` when absent. Made at the first start.
    pub(crate) api_key_file: Option<PathBuf>,
    pub(crate) sandbox: SandboxConfig,
    pub(crate) storage: StorageConfig,
    pub(crate) registry: RegistryConfig,
    pub(crate) network: NetworkConfig,
    pub(crate) vmm: VmmConfig,
    pub(crate) assets: AssetsConfig,
}

/// `[sandbox]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SandboxConfig {
    /// Virtual processors of a template that does not say.
    pub(crate) default_vcpus: u32,
    /// Memory of a template that does not say.
    pub(crate) default_memory_mib: u32,
    /// Lifetime of a sandbox that `aenv start` makes without one.
    pub(crate) default_timeout_s: u32,
    /// Most sandboxes at a time.
    pub(crate) limit: u32,
}

/// `[storage]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StorageConfig {
    /// Size of a sandbox's disk; space is only taken for what is written.
    pub(crate) virtual_size_gib: u64,
}

/// `[registry]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RegistryConfig {
    /// Registries, as `host` or `host:port`, that are spoken to without TLS.
    pub(crate) insecure: Vec<String>,
    /// Docker's credential file for pulls that bring no credentials.
    pub(crate) docker_config: Option<PathBuf>,
}

/// `[network]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NetworkConfig {
    /// Addresses for the host's side of sandboxes, two for each.
    pub(crate) slot_range: NetworkAddress,
    /// Name servers of sandboxes.
    pub(crate) dns: Vec<Ipv4Addr>,
    /// Start of names of namespaces and links; nodes on one host use different ones.
    pub(crate) name_prefix: String,
    /// Networks no sandbox reaches, in place of the built-in list. A shorter list opens private networks to sandboxes.
    pub(crate) denied_networks: Vec<NetworkAddress>,
}

/// `[vmm]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct VmmConfig {
    /// QEMU's program, by name or path.
    pub(crate) qemu: PathBuf,
    /// What executes guest code.
    pub(crate) accelerator: Accelerator,
}

/// What executes guest code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Accelerator {
    /// KVM when it is backed by hardware, else software emulation.
    #[default]
    Auto,
    /// KVM or nothing.
    Kvm,
    /// Software emulation.
    Tcg,
}

/// `[assets]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AssetsConfig {
    /// Directory with `aenv-init` and `aenv-envd`; looked for near this program when absent.
    pub(crate) guest_programs: Option<PathBuf>,
    /// Address of the guest kernel's Debian package, for hosts without apt.
    pub(crate) kernel_package_url: Option<String>,
    /// Its SHA-256.
    pub(crate) kernel_package_sha256: Option<String>,
    /// Address of the package busybox-static, for hosts without apt and without a static /bin/busybox.
    pub(crate) busybox_package_url: Option<String>,
    /// Its SHA-256.
    pub(crate) busybox_package_sha256: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 3000)),
            domain: None,
            data_dir: "/var/lib/agentenv".into(),
            runtime_dir: "/run/agentenv".into(),
            api_key_file: None,
            sandbox: SandboxConfig::default(),
            storage: StorageConfig::default(),
            registry: RegistryConfig::default(),
            network: NetworkConfig::default(),
            vmm: VmmConfig::default(),
            assets: AssetsConfig::default(),
        }
    }
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self { default_vcpus: 2, default_memory_mib: 512, default_timeout_s: 300, limit: 64 }
    }
}

impl Default for StorageConfig {
    fn default() -> Self {
        Self { virtual_size_gib: 64 }
    }
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            slot_range: NetworkAddress(Ipv4Addr::new(10, 12, 0, 0), 16),
            dns: vec![Ipv4Addr::new(1, 1, 1, 1), Ipv4Addr::new(8, 8, 8, 8)],
            name_prefix: "aenv".into(),
            denied_networks: network::DEFAULT_DENIED_NETWORKS
                .iter()
                .map(|(address, length)| NetworkAddress(*address, *length))
                .collect(),
        }
    }
}

impl Default for VmmConfig {
    fn default() -> Self {
        Self { qemu: "qemu-system-x86_64".into(), accelerator: Accelerator::Auto }
    }
}

impl Config {
    /// Reads `path`, or the default path, which may be absent, and applies `environment`.
    pub(crate) fn load(
        path: Option<&Path>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Self> {
        let text = match path {
            Some(path) => read(path)?,
            None if Path::new(DEFAULT_PATH).exists() => read(Path::new(DEFAULT_PATH))?,
            None => String::new(),
        };
        let shown = path.unwrap_or_else(|| Path::new(DEFAULT_PATH)).display();
        let table: toml::Table = text.parse().with_context(|| format!("configuration {shown}"))?;
        // Read once as it stands, so that errors show the line of the file and not of what the environment made of it.
        let _: Self = toml::from_str(&text).with_context(|| format!("configuration {shown}"))?;
        let table = keys::override_from(table, environment)?;
        let config: Self = table.try_into().context("configuration with the AENV_… environment")?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> anyhow::Result<()> {
        for (name, path) in [("data_dir", &self.data_dir), ("runtime_dir", &self.runtime_dir)] {
            if !path.is_absolute() {
                bail!("configuration: {name} = {:?} must be an absolute path", path.display());
            }
        }
        if self.sandbox.default_vcpus == 0 || self.sandbox.default_memory_mib < 64 {
            bail!("configuration: a sandbox needs at least 1 processor and 64 MiB of memory");
        }
        if !(1..=16 * 1024).contains(&self.storage.virtual_size_gib) {
            bail!("configuration: virtual_size_gib must be between 1 and 16384");
        }
        Ok(())
    }

    pub(crate) fn api_key_path(&self) -> PathBuf {
        self.api_key_file.clone().unwrap_or_else(|| self.data_dir.join("api-key"))
    }

    pub(crate) fn assets_directory(&self) -> PathBuf {
        self.data_dir.join("assets")
    }

    /// Where a client on this host reaches the node.
    pub(crate) fn url(&self) -> String {
        let mut address = self.listen;
        if address.ip().is_unspecified() {
            address.set_ip(if address.is_ipv4() {
                [127, 0, 0, 1].into()
            } else {
                [0, 0, 0, 0, 0, 0, 0, 1].into()
            });
        }
        format!("http://{address}")
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    let context = || format!("read the configuration {}", path.display());
    let size = std::fs::metadata(path).with_context(context)?.len();
    if size > MAX_FILE_BYTES {
        bail!("{} has {size} bytes: that is no configuration file", path.display());
    }
    std::fs::read_to_string(path).with_context(context)
}

#[cfg(test)]
mod tests;
