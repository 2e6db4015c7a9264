//! Messages of `filesystem.Filesystem`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::connect::json::{ProtoEnum, enumeration, int64_string, is_default, null_default, uint32};

pub use super::process::Empty as RemoveResponse;

/// What an entry is. For a symbolic link whose target exists: what the target is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FileType {
    /// Not known, or none of the others.
    #[default]
    Unspecified,
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link that leads nowhere.
    Symlink,
}

impl ProtoEnum for FileType {
    const VALUES: &'static [(Self, i32, &'static str)] = &[
        (Self::Unspecified, 0, "FILE_TYPE_UNSPECIFIED"),
        (Self::File, 1, "FILE_TYPE_FILE"),
        (Self::Directory, 2, "FILE_TYPE_DIRECTORY"),
        (Self::Symlink, 3, "FILE_TYPE_SYMLINK"),
    ];
}

/// One entry of a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EntryInfo {
    /// Last component of the path.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_default")]
    pub name: String,
    /// What it is.
    #[serde(rename = "type", skip_serializing_if = "is_default", with = "enumeration")]
    pub kind: FileType,
    /// Absolute path, as it was asked for (not resolved).
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_default")]
    pub path: String,
    /// Length in bytes.
    #[serde(skip_serializing_if = "is_default", with = "int64_string")]
    pub size: i64,
    /// Permission bits, with set-user-ID, set-group-ID and sticky bit.
    #[serde(skip_serializing_if = "is_default", with = "uint32")]
    pub mode: u32,
    /// The same as `ls` shows it, with the type in front.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_default")]
    pub permissions: String,
    /// Owner's name, or number when it has none.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_default")]
    pub owner: String,
    /// Group's name, or number when it has none.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_default")]
    pub group: String,
    /// Time of the last change of content, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none", alias = "modified_time")]
    pub modified_time: Option<String>,
    /// For a symbolic link: where it leads, fully resolved if that exists.
    #[serde(skip_serializing_if = "Option::is_none", alias = "symlink_target")]
    pub symlink_target: Option<String>,
    /// Extended attributes `user.e2b.*`, without that prefix.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_default")]
    pub metadata: BTreeMap<String, String>,
}

macro_rules! path_request {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name {
            /// Absolute, or relative to the default working directory, or with a leading `~`.
            #[serde(skip_serializing_if = "is_default", deserialize_with = "null_default")]
            pub path: String,
        }
    };
}

macro_rules! entry_response {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name {
            /// The entry after the call.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub entry: Option<EntryInfo>,
        }
    };
}

path_request!(
    /// Asks for one entry.
    StatRequest
);
path_request!(
    /// Makes a directory and its parents.
    MakeDirRequest
);
path_request!(
    /// Removes an entry and everything below it.
    RemoveRequest
);
entry_response!(
    /// Answer to [`StatRequest`].
    StatResponse
);
entry_response!(
    /// Answer to [`MakeDirRequest`].
    MakeDirResponse
);
entry_response!(
    /// Answer to [`MoveRequest`].
    MoveResponse
);

/// Renames an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MoveRequest {
    /// What to move.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_default")]
    pub source: String,
    /// Its new path.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_default")]
    pub destination: String,
}

/// Lists a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListDirRequest {
    /// The directory.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_default")]
    pub path: String,
    /// How many levels; 0 counts as 1.
    #[serde(skip_serializing_if = "is_default", with = "uint32")]
    pub depth: u32,
}

/// Answer to [`ListDirRequest`]: parents before children, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListDirResponse {
    /// The entries.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub entries: Vec<EntryInfo>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_names_and_forms_of_proto3_json() {
        let entry = EntryInfo {
            name: "a".into(),
            kind: FileType::File,
            path: "/a".into(),
            size: 5,
            mode: 0o644,
            modified_time: Some("2026-01-01T00:00:00Z".into()),
            ..EntryInfo::default()
        };
        let text = r#"{"name":"a","type":"FILE_TYPE_FILE","path":"/a","size":"5","mode":420,"modifiedTime":"2026-01-01T00:00:00Z"}"#;
        assert_eq!(serde_json::to_string(&entry).unwrap(), text);
        assert_eq!(serde_json::from_str::<EntryInfo>(text).unwrap(), entry);
        let snake = r#"{"name":"a","type":1,"path":"/a","size":5,"mode":420,"modified_time":"2026-01-01T00:00:00Z","x":1}"#;
        assert_eq!(serde_json::from_str::<EntryInfo>(snake).unwrap(), entry);
    }
}
