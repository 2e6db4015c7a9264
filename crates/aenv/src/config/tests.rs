use std::collections::BTreeSet;

use super::*;

fn load(text: &str, environment: &[(&str, &str)]) -> anyhow::Result<Config> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.toml");
    std::fs::write(&path, text).unwrap();
    Config::load(Some(&path), |name| {
        environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    })
}

fn message(text: &str) -> String {
    format!("{:#}", load(text, &[]).unwrap_err())
}

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(load("", &[]).unwrap(), Config::default());
}

#[test]
fn what_the_file_says_holds() {
    let config = load(
        "listen = \"127.0.0.1:4000\"\n[network]\nslot_range = \"10.99.0.0/20\"\ndns = [\"9.9.9.9\"]\n\
         [vmm]\naccelerator = \"tcg\"\n",
        &[],
    )
    .unwrap();
    assert_eq!(config.listen.port(), 4000);
    assert_eq!(config.network.slot_range, NetworkAddress(Ipv4Addr::new(10, 99, 0, 0), 20));
    assert_eq!(config.network.dns, [Ipv4Addr::new(9, 9, 9, 9)]);
    assert_eq!(config.vmm.accelerator, Accelerator::Tcg);
    assert_eq!(config.network.name_prefix, "aenv");
}

#[test]
fn an_unknown_key_is_refused_by_name_wherever_it_stands() {
    for text in [
        "lisen = \"x\"",
        "[sandbox]\nlisen = 1",
        "[lisen]\na = 1",
        "[network]\nname_prefix = \"a\"\nlisen = 1",
    ] {
        assert!(message(text).contains("lisen"), "{}", message(text));
    }
}

#[test]
fn a_wrong_value_is_refused_with_its_place() {
    assert!(message("[network]\nslot_range = \"10.12.0.0\"").contains("10.12.0.0"));
    assert!(message("[network]\nslot_range = \"10.12.0.0/33\"").contains("10.12.0.0/33"));
    assert!(message("\n\nlisten = 7").contains('3'), "the line: {}", message("\n\nlisten = 7"));
    assert!(message("[vmm]\naccelerator = \"fast\"").contains("fast"));
    assert!(message("data_dir = \"relative\"").contains("data_dir"));
}

#[test]
fn the_environment_wins_over_the_file() {
    let config = load(
        "listen = \"127.0.0.1:4000\"\n[registry]\ninsecure = [\"a\"]",
        &[
            ("AENV_LISTEN", "127.0.0.1:5000"),
            ("AENV_SANDBOX_DEFAULT_VCPUS", "7"),
            ("AENV_REGISTRY_INSECURE", "127.0.0.1:5000, localhost:6000"),
        ],
    )
    .unwrap();
    assert_eq!(config.listen.port(), 5000);
    assert_eq!(config.sandbox.default_vcpus, 7);
    assert_eq!(config.registry.insecure, ["127.0.0.1:5000", "localhost:6000"]);
}

#[test]
fn a_number_in_the_environment_that_is_none_is_refused_by_name() {
    let error = load("", &[("AENV_SANDBOX_DEFAULT_VCPUS", "many")]).unwrap_err();
    assert!(format!("{error:#}").contains("AENV_SANDBOX_DEFAULT_VCPUS"));
}

#[test]
fn every_key_can_be_set_from_the_environment() {
    let full = Config {
        domain: Some("d".into()),
        api_key_file: Some("/k".into()),
        registry: RegistryConfig { docker_config: Some("/c".into()), ..RegistryConfig::default() },
        assets: AssetsConfig {
            guest_programs: Some("/g".into()),
            kernel_package_url: Some("u".into()),
            kernel_package_sha256: Some("s".into()),
            busybox_package_url: Some("u".into()),
            busybox_package_sha256: Some("s".into()),
        },
        ..Config::default()
    };
    let mut present = BTreeSet::new();
    for (key, value) in toml::Table::try_from(full).unwrap() {
        match value {
            toml::Value::Table(inner) => present.extend(inner.keys().map(|name| (key.clone(), name.clone()))),
            _ => drop(present.insert((String::new(), key))),
        }
    }
    let listed: BTreeSet<_> =
        keys::KEYS.iter().map(|(table, name, _)| ((*table).to_owned(), (*name).to_owned())).collect();
    assert_eq!(listed, present);
}

#[test]
fn a_client_reaches_a_node_that_listens_everywhere_on_loopback() {
    let config = load("listen = \"0.0.0.0:3000\"", &[]).unwrap();
    assert_eq!(config.url(), "http://127.0.0.1:3000");
    assert_eq!(load("listen = \"[::]:3000\"", &[]).unwrap().url(), "http://[::1]:3000");
}

#[test]
fn a_named_file_that_is_missing_is_an_error() {
    let error = Config::load(Some(Path::new("/nonexistent/aenv.toml")), |_| None).unwrap_err();
    assert!(format!("{error:#}").contains("/nonexistent/aenv.toml"));
}
