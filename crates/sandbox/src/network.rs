//! What the lifecycle needs of the network, so that its tests run without kernel interfaces.

use std::os::fd::OwnedFd;

use async_trait::async_trait;
use network::{NetworkError, Slot, SlotManager, SlotRecord};

/// Makes and removes the networks of sandboxes. [`SlotManager`] is the real one; its documentation is the contract.
#[async_trait]
pub trait Networks: Send + Sync + std::fmt::Debug {
    /// See [`SlotManager::acquire`].
    async fn acquire(&self) -> Result<Slot, NetworkError>;
    /// See [`SlotManager::adopt`].
    async fn adopt(&self, record: &SlotRecord) -> Result<Slot, NetworkError>;
    /// See [`SlotManager::open_tap`].
    async fn open_tap(&self, slot: &Slot) -> Result<OwnedFd, NetworkError>;
    /// See [`SlotManager::release`].
    async fn release(&self, slot: &Slot) -> Result<(), NetworkError>;
    /// See [`SlotManager::sweep`].
    async fn sweep(&self) -> Result<u32, NetworkError>;
}

#[async_trait]
impl Networks for SlotManager {
    async fn acquire(&self) -> Result<Slot, NetworkError> {
        Self::acquire(self).await
    }
    async fn adopt(&self, record: &SlotRecord) -> Result<Slot, NetworkError> {
        Self::adopt(self, record).await
    }
    async fn open_tap(&self, slot: &Slot) -> Result<OwnedFd, NetworkError> {
        Self::open_tap(self, slot).await
    }
    async fn release(&self, slot: &Slot) -> Result<(), NetworkError> {
        Self::release(self, slot).await
    }
    async fn sweep(&self) -> Result<u32, NetworkError> {
        Self::sweep(self).await
    }
}
