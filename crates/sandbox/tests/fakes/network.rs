//! Network slots; their guests have loopback addresses.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use network::{NetworkError, Slot, SlotRecord};
use sandbox::Networks;

use super::{Step, World};

/// The manager of one node: it knows which slots it made or adopted.
#[derive(Debug)]
pub struct FakeNetworks {
    world: Arc<World>,
    known: Mutex<BTreeSet<u32>>,
}

impl FakeNetworks {
    pub fn new(world: Arc<World>) -> Self {
        Self { world, known: Mutex::default() }
    }

    fn slot(&self, index: u32) -> Slot {
        let [second, third] = self.world.subnet;
        let last = u8::try_from(index + 1).unwrap();
        Slot {
            index,
            namespace: format!("fake-{index}"),
            host_side_guest_address: Ipv4Addr::new(127, second, third, last),
        }
    }
}

fn failed(reason: String) -> NetworkError {
    NetworkError::Operation { operation: "fake".to_owned(), reason }
}

#[async_trait]
impl Networks for FakeNetworks {
    async fn acquire(&self) -> Result<Slot, NetworkError> {
        self.world.pass(Step::AcquireSlot).await.map_err(failed)?;
        let mut slots = self.world.slots.lock().unwrap();
        let index = (0..).find(|index| !slots.contains(index)).unwrap();
        slots.insert(index);
        self.known.lock().unwrap().insert(index);
        Ok(self.slot(index))
    }

    async fn adopt(&self, record: &SlotRecord) -> Result<Slot, NetworkError> {
        self.world.slots.lock().unwrap().insert(record.index);
        self.known.lock().unwrap().insert(record.index);
        Ok(self.slot(record.index))
    }

    async fn open_tap(&self, _slot: &Slot) -> Result<OwnedFd, NetworkError> {
        self.world.pass(Step::OpenTap).await.map_err(failed)?;
        Ok(std::fs::File::open("/dev/null").unwrap().into())
    }

    async fn release(&self, slot: &Slot) -> Result<(), NetworkError> {
        self.world.pass(Step::ReleaseSlot).await.map_err(failed)?;
        self.world.slots.lock().unwrap().remove(&slot.index);
        Ok(())
    }

    async fn sweep(&self) -> Result<u32, NetworkError> {
        let known = self.known.lock().unwrap();
        let mut slots = self.world.slots.lock().unwrap();
        let before = slots.len();
        slots.retain(|index| known.contains(index));
        Ok(u32::try_from(before - slots.len()).unwrap())
    }
}
