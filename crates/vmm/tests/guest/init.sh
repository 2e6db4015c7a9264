#!/bin/busybox sh
# First process of the guests in these tests. The kernel word test.mode selects what it does once it is ready.
B=/bin/busybox
$B mount -t devtmpfs none /dev
$B mount -t proc none /proc
$B mount -t sysfs none /sys
exec >/dev/ttyS0 2>&1 </dev/ttyS0
$B echo "test-init: started"
for module in /modules/*.ko; do $B insmod "$module" || $B echo "test-init: $module not inserted"; done
for disk in /sys/block/vd*; do
    $B echo "test-init: disk ${disk##*/} read-only=$($B cat "$disk/ro") sectors=$($B cat "$disk/size") discard=$($B cat "$disk/queue/discard_max_bytes")"
done
for card in /sys/class/net/eth*; do
    [ -e "$card" ] && $B echo "test-init: card ${card##*/} $($B cat "$card/address")"
done
$B echo "test-init: random $($B cat /sys/class/misc/hw_random/rng_current) virtio $($B cut -c33 /sys/bus/virtio/devices/virtio0/features) clock $($B date +%s)"
$B echo "test-init: ready"
mode=$($B sed -n 's/.*test\.mode=\([a-z]*\).*/\1/p' /proc/cmdline)
case "$mode" in
    talk)
        number=0
        while :; do $B echo "test-init: beat $number"; number=$((number + 1)); $B sleep 0.1; done ;;
    flood)
        while :; do $B yes "test-init: flood flood flood flood flood flood flood flood flood flood flood"; done ;;
    panic)
        exit 3 ;;
    poweroff)
        $B poweroff -f ;;
    network)
        $B ip address add 169.254.0.21/30 dev eth0
        $B ip link set eth0 up
        $B echo "test-init: listening"
        while :; do $B echo "hello from the guest" | $B nc -l -p 80; done ;;
    *)
        while :; do $B sleep 1000; done ;;
esac
