//! `filesystem.Filesystem`.

use std::os::unix::fs::MetadataExt as _;

use serde_json::json;

use crate::server::{Server, USER_ID};

#[test]
fn a_made_directory_belongs_to_the_user_and_is_described() {
    let server = Server::ready();
    let path = server.text_path("home/a/b");
    let answer = server.succeed("filesystem.Filesystem/MakeDir", &json!({"path": "~/a/b"}));
    let entry = &answer["entry"];
    assert_eq!((entry["path"].as_str(), entry["name"].as_str()), (Some(path.as_str()), Some("b")));
    assert_eq!(
        (entry["type"].as_str(), entry["owner"].as_str()),
        (Some("FILE_TYPE_DIRECTORY"), Some("user"))
    );
    assert_eq!((entry["mode"].as_u64(), entry["permissions"].as_str()), (Some(0o755), Some("drwxr-xr-x")));
    assert!(entry["modifiedTime"].as_str().unwrap().ends_with('Z'));
    for directory in ["home/a", "home/a/b"] {
        let meta = server.path(directory).metadata().unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (USER_ID, USER_ID, 0o755));
    }
    let again = server.fail("filesystem.Filesystem/MakeDir", &json!({"path": path}));
    assert_eq!((again.0, again.1.as_str()), (409, "already_exists"));
    let file = server.fail("filesystem.Filesystem/MakeDir", &json!({"path": server.text_path("etc/passwd")}));
    assert_eq!((file.0, file.1.as_str()), (400, "invalid_argument"));
}

#[test]
fn stat_describes_files_links_and_what_is_missing() {
    let server = Server::ready();
    std::fs::write(server.path("home/f"), "12345").unwrap();
    std::os::unix::fs::symlink("f", server.path("home/link")).unwrap();
    let stat =
        |path: &str| server.succeed("filesystem.Filesystem/Stat", &json!({"path": path}))["entry"].clone();
    let file = stat("f");
    assert_eq!((file["type"].as_str(), file["size"].as_str()), (Some("FILE_TYPE_FILE"), Some("5")));
    assert!(file.get("symlinkTarget").is_none());
    let link = stat("link");
    let target = server.path("home/f").canonicalize().unwrap();
    assert_eq!(
        (link["type"].as_str(), link["symlinkTarget"].as_str()),
        (Some("FILE_TYPE_FILE"), target.to_str())
    );
    let missing = server.fail("filesystem.Filesystem/Stat", &json!({"path": "/no/such"}));
    assert_eq!((missing.0, missing.1.as_str()), (404, "not_found"));
    assert_eq!(server.fail("filesystem.Filesystem/Stat", &json!({"path": "~other/x"})).1, "invalid_argument");
    let nobody =
        server.request("POST", "/filesystem.Filesystem/Stat").header("Authorization", "Basic bm9ib2R5Og==");
    let answer = nobody.json(&json!({"path": "/"})).send();
    assert_eq!(
        (answer.status, answer.to_json()["message"].as_str()),
        (401, Some("invalid username: 'nobody'"))
    );
}

#[test]
fn a_listing_has_depth_and_keeps_the_asked_prefix() {
    let server = Server::ready();
    std::fs::create_dir_all(server.path("home/d/sub/deep")).unwrap();
    std::fs::write(server.path("home/d/a"), "").unwrap();
    std::os::unix::fs::symlink("d", server.path("home/link")).unwrap();
    let list = |message: serde_json::Value| -> Vec<String> {
        let answer = server.succeed("filesystem.Filesystem/ListDir", &message);
        let entries = answer["entries"].as_array().cloned().unwrap_or_default();
        entries.iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
    };
    let at = |name: &str| server.text_path(name);
    assert_eq!(list(json!({"path": at("home/d")})), [at("home/d/a"), at("home/d/sub")]);
    assert_eq!(list(json!({"path": at("home/d"), "depth": 0})), [at("home/d/a"), at("home/d/sub")]);
    assert_eq!(
        list(json!({"path": at("home/d"), "depth": 2})),
        [at("home/d/a"), at("home/d/sub"), at("home/d/sub/deep")]
    );
    assert_eq!(list(json!({"path": at("home/link")})), [at("home/link/a"), at("home/link/sub")]);
    assert_eq!(list(json!({"path": at("home/d/sub/deep")})), Vec::<String>::new());
    let fail = |path: &str| server.fail("filesystem.Filesystem/ListDir", &json!({"path": path})).1;
    assert_eq!(fail(&at("home/d/a")), "invalid_argument");
    assert_eq!(fail("/no/such"), "not_found");
}

#[test]
fn moving_and_removing() {
    let server = Server::ready();
    std::fs::write(server.path("home/a"), "x").unwrap();
    let destination = server.text_path("home/new/dir/b");
    let answer =
        server.succeed("filesystem.Filesystem/Move", &json!({"source": "a", "destination": destination}));
    assert_eq!(answer["entry"]["path"].as_str(), Some(destination.as_str()));
    assert_eq!(server.path("home/new").metadata().unwrap().uid(), USER_ID);
    assert_eq!(
        server.fail("filesystem.Filesystem/Move", &json!({"source": "a", "destination": "c"})).1,
        "not_found"
    );
    assert_eq!(server.succeed("filesystem.Filesystem/Remove", &json!({"path": "new"})), json!({}));
    assert!(!server.path("home/new").exists());
    assert_eq!(server.succeed("filesystem.Filesystem/Remove", &json!({"path": "new"})), json!({}));
}
