//! `aenv setup`: makes what guests boot from.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use assets::{AptSource, GuestPrograms, PackageUrls, PinnedUrl, SetupConfig, Sources};

use crate::config::{AssetsConfig, Config};
use crate::output;

const INIT: &str = "aenv-init";
const ENVD: &str = "aenv-envd";
/// Where the guest programs are, seen from the directory of this program: built in the same checkout, beside it (an
/// unpacked release), or installed. The checkout comes first, because building its whole workspace also leaves dynamically
/// linked ones beside this program, which no guest can run.
const PLACES: [&str; 3] = ["../x86_64-unknown-linux-gnu/guest", ".", "../lib/agentenv"];

pub(crate) fn run(config: &Config) -> anyhow::Result<()> {
    let setup = SetupConfig {
        assets_directory: config.assets_directory(),
        guest_programs: guest_programs(&config.assets)?,
        sources: sources(&config.assets)?,
    };
    assets::prepare(&setup, &mut |line| output::note(line))?;
    Ok(())
}

fn guest_programs(config: &AssetsConfig) -> anyhow::Result<GuestPrograms> {
    let in_directory =
        |directory: &Path| GuestPrograms { init: directory.join(INIT), envd: directory.join(ENVD) };
    if let Some(directory) = &config.guest_programs {
        return Ok(in_directory(directory));
    }
    let own = std::env::current_exe().context("find this program's own file")?;
    let own_directory = own.parent().context("find this program's own directory")?;
    let places: Vec<PathBuf> = PLACES.iter().map(|place| own_directory.join(place)).collect();
    let found = places
        .iter()
        .map(|place| in_directory(place))
        .find(|programs| programs.init.is_file() && programs.envd.is_file());
    found.with_context(|| {
        let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        format!(
            "{INIT} and {ENVD} are in none of {}; build them (`make build`), or name their directory in the \
             configuration: [assets] guest_programs",
            looked.join(", ")
        )
    })
}

fn sources(config: &AssetsConfig) -> anyhow::Result<Sources> {
    let pinned = |name: &str, url: &Option<String>, sha256: &Option<String>| match (url, sha256) {
        (None, None) => Ok(None),
        (Some(url), Some(sha256)) => Ok(Some(PinnedUrl { url: url.clone(), sha256: sha256.clone() })),
        _ => bail!("configuration: [assets] {name}_url and {name}_sha256 belong together"),
    };
    let kernel = pinned("kernel_package", &config.kernel_package_url, &config.kernel_package_sha256)?;
    let busybox_package =
        pinned("busybox_package", &config.busybox_package_url, &config.busybox_package_sha256)?;
    Ok(match kernel {
        Some(kernel_package) => Sources::Urls(PackageUrls { kernel_package, busybox_package }),
        None if busybox_package.is_some() => {
            bail!("configuration: [assets] busybox_package_url needs kernel_package_url")
        }
        None => Sources::Apt(AptSource::default()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_its_digest_is_refused() {
        let config = AssetsConfig { kernel_package_url: Some("https://x".into()), ..AssetsConfig::default() };
        assert!(sources(&config).unwrap_err().to_string().contains("kernel_package_sha256"));
    }

    #[test]
    fn apt_is_asked_when_nothing_is_configured() {
        assert!(matches!(sources(&AssetsConfig::default()).unwrap(), Sources::Apt(_)));
    }

    #[test]
    fn a_configured_directory_is_taken_as_it_is() {
        let config = AssetsConfig { guest_programs: Some("/g".into()), ..AssetsConfig::default() };
        assert_eq!(guest_programs(&config).unwrap().init, Path::new("/g/aenv-init"));
    }
}
