//! Which file of the mount is which device.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use super::abi::NAME_BYTES_MAX;
use crate::access::Slot;
use crate::{DeviceInfo, DeviceSpec, FrontEndError, Image};

/// Lowest inode a device may have; those below belong to the mount.
pub const FIRST_DEVICE_INODE: u64 = 16;

/// One open device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) spec: DeviceSpec,
    pub(crate) slot: Slot,
}

/// All open devices, by inode and by name.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    tables: RwLock<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    by_inode: BTreeMap<u64, Arc<Device>>,
    by_name: HashMap<String, u64>,
    /// Inodes of devices closed since this process began; the kernel may still hold any of them.
    retired: HashSet<u64>,
}

impl Devices {
    pub(crate) fn insert(&self, spec: DeviceSpec, image: Arc<dyn Image>) -> Result<(), FrontEndError> {
        check_name(&spec.name)?;
        if spec.inode < FIRST_DEVICE_INODE {
            return Err(FrontEndError::InvalidInode { inode: spec.inode, first: FIRST_DEVICE_INODE });
        }
        if !image.size_bytes().is_multiple_of(crate::SECTOR_BYTES)
            || i64::try_from(image.size_bytes()).is_err()
        {
            return Err(FrontEndError::InvalidSize { name: spec.name, size_bytes: image.size_bytes() });
        }
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        if tables.by_name.contains_key(&spec.name) {
            return Err(FrontEndError::NameInUse(spec.name));
        }
        if tables.by_inode.contains_key(&spec.inode) || tables.retired.contains(&spec.inode) {
            return Err(FrontEndError::InodeInUse(spec.inode));
        }
        tables.by_name.insert(spec.name.clone(), spec.inode);
        tables.by_inode.insert(spec.inode, Arc::new(Device { spec, slot: Slot::new(image) }));
        Ok(())
    }

    /// Takes a device out of the tables. Requests that found it before may still be using it.
    pub(crate) fn remove(&self, name: &str) -> Option<Arc<Device>> {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let inode = tables.by_name.remove(name)?;
        tables.retired.insert(inode);
        tables.by_inode.remove(&inode)
    }

    pub(crate) fn by_inode(&self, inode: u64) -> Option<Arc<Device>> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner).by_inode.get(&inode).cloned()
    }

    pub(crate) fn by_name(&self, name: &[u8]) -> Option<Arc<Device>> {
        let name = std::str::from_utf8(name).ok()?;
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        tables.by_inode.get(tables.by_name.get(name)?).cloned()
    }

    /// Up to `count` devices with inodes above `inode`, in their order: a listing that goes on rightly whatever comes and
    /// goes between two calls.
    pub(crate) fn after(&self, inode: u64, count: usize) -> Vec<Arc<Device>> {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = inode.checked_add(1) else { return Vec::new() };
        tables.by_inode.range(first..).take(count).map(|(_, device)| Arc::clone(device)).collect()
    }

    pub(crate) fn list(&self, mount_point: &Path) -> Vec<DeviceInfo> {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        let mut list: Vec<_> = tables
            .by_inode
            .values()
            .map(|device| DeviceInfo {
                spec: device.spec.clone(),
                path: mount_point.join(&device.spec.name),
                size_bytes: device.slot.size_bytes(),
            })
            .collect();
        list.sort_by(|one, other| one.spec.name.cmp(&other.spec.name));
        list
    }

    pub(crate) fn count(&self) -> usize {
        self.tables.read().unwrap_or_else(PoisonError::into_inner).by_inode.len()
    }
}

fn check_name(name: &str) -> Result<(), FrontEndError> {
    let usable = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name != "."
        && name != ".."
        && !name.bytes().any(|byte| byte == b'/' || byte == 0);
    if usable {
        Ok(())
    } else {
        Err(FrontEndError::InvalidName { name: name.chars().take(300).collect(), limit: NAME_BYTES_MAX })
    }
}
