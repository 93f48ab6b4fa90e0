package main

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

type machine struct {
	Driver string `json:"driver"`
	NVML   string `json:"nvml"`
	Cuda   int    `json:"cuda"`
	GPUs   []gpu  `json:"gpus"`
}

type gpu struct {
	Index       int         `json:"index"`
	UUID        string      `json:"uuid"`
	Name        string      `json:"name"`
	BusID       string      `json:"busId"`
	MemoryBytes uint64      `json:"memoryBytes"`
	MigCapable  bool        `json:"migCapable"`
	MigEnabled  bool        `json:"migEnabled"`
	Profiles    []profile   `json:"profiles"`
	Partitions  []partition `json:"partitions"`
}

type profile struct {
	Enum       int         `json:"enum"`
	ID         uint32      `json:"id"`
	Name       string      `json:"name"`
	Slices     uint32      `json:"slices"`
	MemoryMiB  uint64      `json:"memoryMiB"`
	Placements []placement `json:"placements"`
	Capacity   int         `json:"capacity"`
	info       nvml.GpuInstanceProfileInfo
}

type placement struct {
	Start uint32 `json:"start"`
	Size  uint32 `json:"size"`
}

// partition is what one GPU instance and its compute instance looked like while they lived.
type partition struct {
	Profile     string    `json:"profile"`
	Placement   placement `json:"placement"`
	GI          uint32    `json:"gi"`
	CI          uint32    `json:"ci"`
	UUID        string    `json:"uuid"`
	Name        string    `json:"name"`
	SMs         uint32    `json:"sms"`
	Slices      uint32    `json:"slices"`
	MemoryMiB   uint64    `json:"memoryMiB"`
	MemoryBytes uint64    `json:"memoryBytes"`
}

func walk() (*machine, error) {
	var m machine
	var code nvml.Return
	if m.Driver, code = nvml.SystemGetDriverVersion(); code != nvml.SUCCESS {
		return nil, check("nvmlSystemGetDriverVersion", code)
	}
	if m.NVML, code = nvml.SystemGetNVMLVersion(); code != nvml.SUCCESS {
		return nil, check("nvmlSystemGetNVMLVersion", code)
	}
	if m.Cuda, code = nvml.SystemGetCudaDriverVersion(); code != nvml.SUCCESS {
		return nil, check("nvmlSystemGetCudaDriverVersion", code)
	}
	count, code := nvml.DeviceGetCount()
	if code != nvml.SUCCESS {
		return nil, check("nvmlDeviceGetCount", code)
	}
	for index := range count {
		device, code := nvml.DeviceGetHandleByIndex(index)
		if code != nvml.SUCCESS {
			return nil, check("nvmlDeviceGetHandleByIndex", code)
		}
		g, err := walkGPU(index, device)
		if err != nil {
			return nil, fmt.Errorf("GPU %d: %w", index, err)
		}
		m.GPUs = append(m.GPUs, *g)
	}
	return &m, nil
}

func walkGPU(index int, device nvml.Device) (*gpu, error) {
	g := gpu{Index: index, Profiles: []profile{}, Partitions: []partition{}}
	if err := describe(&g, device); err != nil {
		return nil, err
	}
	if !g.MigCapable {
		return &g, nil
	}
	profiles, err := listProfiles(device, g.MigEnabled)
	if err != nil {
		return nil, err
	}
	g.Profiles = profiles
	if !g.MigEnabled {
		return &g, nil
	}
	for _, p := range profiles {
		for _, at := range p.Placements {
			made, err := tryPartition(device, g.UUID, p, at)
			if err != nil {
				return nil, fmt.Errorf("%s at %d: %w", p.Name, at.Start, err)
			}
			if made != nil {
				g.Partitions = append(g.Partitions, *made)
			}
		}
	}
	return &g, nil
}

func describe(g *gpu, device nvml.Device) error {
	var code nvml.Return
	if g.UUID, code = device.GetUUID(); code != nvml.SUCCESS {
		return check("nvmlDeviceGetUUID", code)
	}
	if g.Name, code = device.GetName(); code != nvml.SUCCESS {
		return check("nvmlDeviceGetName", code)
	}
	pci, code := device.GetPciInfo()
	if code != nvml.SUCCESS {
		return check("nvmlDeviceGetPciInfo", code)
	}
	g.BusID = text(pci.BusId[:])
	memory, code := device.GetMemoryInfo()
	if code != nvml.SUCCESS {
		return check("nvmlDeviceGetMemoryInfo", code)
	}
	g.MemoryBytes = memory.Total
	mode, _, code := device.GetMigMode()
	if code == nvml.ERROR_NOT_SUPPORTED {
		return nil
	}
	g.MigCapable, g.MigEnabled = true, mode == nvml.DEVICE_MIG_ENABLE
	return check("nvmlDeviceGetMigMode", code)
}

// listProfiles asks for every profile that the header knows; those that the GPU lacks are NOT_SUPPORTED.
func listProfiles(device nvml.Device, enabled bool) ([]profile, error) {
	profiles := []profile{}
	for enum := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, code := device.GetGpuInstanceProfileInfo(enum)
		if code == nvml.ERROR_NOT_SUPPORTED || code == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if code != nvml.SUCCESS {
			return nil, check("nvmlDeviceGetGpuInstanceProfileInfo", code)
		}
		p, err := readProfile(device, enum, info)
		if err != nil {
			return nil, err
		}
		if enabled {
			if p.Capacity, code = device.GetGpuInstanceRemainingCapacity(&info); code != nvml.SUCCESS {
				return nil, check("nvmlDeviceGetGpuInstanceRemainingCapacity", code)
			}
		}
		profiles = append(profiles, *p)
	}
	return profiles, nil
}

// readProfile reads the profile once more through both versioned structs, which must agree with the first.
func readProfile(device nvml.Device, enum int, info nvml.GpuInstanceProfileInfo) (*profile, error) {
	v2, code := device.GetGpuInstanceProfileInfoV(enum).V2()
	if code != nvml.SUCCESS {
		return nil, check("nvmlDeviceGetGpuInstanceProfileInfoV, version 2", code)
	}
	v3, code := device.GetGpuInstanceProfileInfoV(enum).V3()
	if code != nvml.SUCCESS {
		return nil, check("nvmlDeviceGetGpuInstanceProfileInfoV, version 3", code)
	}
	p := profile{
		Enum: enum, ID: info.Id, Name: text(v3.Name[:]), Slices: info.SliceCount, MemoryMiB: info.MemorySizeMB,
		Placements: []placement{}, info: info,
	}
	same := v2.Id == info.Id && v3.Id == info.Id && v2.MemorySizeMB == info.MemorySizeMB &&
		v3.MemorySizeMB == info.MemorySizeMB && text(v2.Name[:]) == p.Name
	if !same {
		return nil, fmt.Errorf("profile %d: versions differ: %+v %+v %+v", enum, info, v2, v3)
	}
	placements, code := device.GetGpuInstancePossiblePlacements(&info)
	for _, at := range placements {
		p.Placements = append(p.Placements, placement{at.Start, at.Size})
	}
	return &p, check("nvmlDeviceGetGpuInstancePossiblePlacements", code)
}

// tryPartition makes a partition, looks at it and takes it away; nil where the place is taken.
func tryPartition(device nvml.Device, parent string, p profile, at placement) (*partition, error) {
	wanted := nvml.GpuInstancePlacement{Start: at.Start, Size: at.Size}
	instance, code := device.CreateGpuInstanceWithPlacement(&p.info, &wanted)
	if code == nvml.ERROR_INSUFFICIENT_RESOURCES {
		return nil, nil
	}
	if code != nvml.SUCCESS {
		return nil, check("nvmlDeviceCreateGpuInstanceWithPlacement", code)
	}
	return fill(device, parent, p, instance)
}

// fill makes the compute instance that takes the whole GPU instance, and destroys both after a look.
func fill(device nvml.Device, parent string, p profile, instance nvml.GpuInstance) (*partition, error) {
	compute, err := createWhole(instance, p.Slices)
	if err != nil {
		return nil, err
	}
	made, err := look(device, parent, instance, compute)
	if err != nil {
		return nil, err
	}
	made.Profile = p.Name
	if code := compute.Destroy(); code != nvml.SUCCESS {
		return nil, check("nvmlComputeInstanceDestroy", code)
	}
	return made, check("nvmlGpuInstanceDestroy", instance.Destroy())
}

func createWhole(instance nvml.GpuInstance, slices uint32) (nvml.ComputeInstance, error) {
	for enum := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, code := instance.GetComputeInstanceProfileInfo(enum, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if code == nvml.ERROR_NOT_SUPPORTED || code == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if code != nvml.SUCCESS {
			return nil, check("nvmlGpuInstanceGetComputeInstanceProfileInfo", code)
		}
		if info.SliceCount == slices {
			compute, code := instance.CreateComputeInstance(&info)
			return compute, check("nvmlGpuInstanceCreateComputeInstance", code)
		}
	}
	return nil, fmt.Errorf("no compute instance profile takes all %d slices", slices)
}

// look reads the partition as a MIG device and checks that every way to it leads to the same.
func look(device nvml.Device, parent string, instance nvml.GpuInstance, compute nvml.ComputeInstance) (*partition, error) {
	gi, code := instance.GetInfo()
	if code != nvml.SUCCESS {
		return nil, check("nvmlGpuInstanceGetInfo", code)
	}
	ci, code := compute.GetInfo()
	if code != nvml.SUCCESS {
		return nil, check("nvmlComputeInstanceGetInfo", code)
	}
	mig, err := findMigDevice(device, int(gi.Id), int(ci.Id))
	if err != nil {
		return nil, err
	}
	made := partition{Placement: placement{gi.Placement.Start, gi.Placement.Size}, GI: gi.Id, CI: ci.Id}
	if err := readMigDevice(&made, mig); err != nil {
		return nil, err
	}
	return &made, checkWays(mig, parent, made.UUID)
}

// findMigDevice looks at every index: others may come and go meanwhile, so that an index may lead nowhere.
func findMigDevice(device nvml.Device, gi, ci int) (nvml.Device, error) {
	count, code := device.GetMaxMigDeviceCount()
	if code != nvml.SUCCESS {
		return nil, check("nvmlDeviceGetMaxMigDeviceCount", code)
	}
	for index := range count {
		mig, code := device.GetMigDeviceHandleByIndex(index)
		if code == nvml.ERROR_NOT_FOUND {
			continue
		}
		if code != nvml.SUCCESS {
			return nil, check("nvmlDeviceGetMigDeviceHandleByIndex", code)
		}
		foundGI, giCode := mig.GetGpuInstanceId()
		foundCI, ciCode := mig.GetComputeInstanceId()
		if giCode == nvml.SUCCESS && ciCode == nvml.SUCCESS && foundGI == gi && foundCI == ci {
			return mig, nil
		}
	}
	return nil, fmt.Errorf("no MIG device for GPU instance %d, compute instance %d", gi, ci)
}

func readMigDevice(made *partition, mig nvml.Device) error {
	var code nvml.Return
	if made.UUID, code = mig.GetUUID(); code != nvml.SUCCESS {
		return check("nvmlDeviceGetUUID of a MIG device", code)
	}
	if made.Name, code = mig.GetName(); code != nvml.SUCCESS {
		return check("nvmlDeviceGetName of a MIG device", code)
	}
	attributes, code := mig.GetAttributes()
	if code != nvml.SUCCESS {
		return check("nvmlDeviceGetAttributes", code)
	}
	made.SMs, made.Slices = attributes.MultiprocessorCount, attributes.GpuInstanceSliceCount
	made.MemoryMiB = attributes.MemorySizeMB
	memory, code := mig.GetMemoryInfo_v2()
	made.MemoryBytes = memory.Total
	return check("nvmlDeviceGetMemoryInfo_v2 of a MIG device", code)
}

func checkWays(mig nvml.Device, parent, uuid string) error {
	isMig, code := mig.IsMigDeviceHandle()
	if code != nvml.SUCCESS || !isMig {
		return fmt.Errorf("nvmlDeviceIsMigDeviceHandle says %v: %w", isMig, check("the call", code))
	}
	byUUID, code := nvml.DeviceGetHandleByUUID(uuid)
	if code != nvml.SUCCESS {
		return check("nvmlDeviceGetHandleByUUID of a MIG device", code)
	}
	device, code := byUUID.GetDeviceHandleFromMigDeviceHandle()
	if code != nvml.SUCCESS {
		return check("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", code)
	}
	found, code := device.GetUUID()
	if code == nvml.SUCCESS && found != parent {
		return fmt.Errorf("MIG device %s leads to GPU %s, not to %s", uuid, found, parent)
	}
	return check("nvmlDeviceGetUUID of a MIG device's GPU", code)
}

func text[T int8 | uint8](zeroTerminated []T) string {
	bytes := make([]byte, 0, len(zeroTerminated))
	for _, char := range zeroTerminated {
		if char == 0 {
			break
		}
		bytes = append(bytes, byte(char))
	}
	return string(bytes)
}
