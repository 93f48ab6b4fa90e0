// Command allocator-compare runs the scheduler's own allocator on worlds given as JSON lines.
//
// Each input line holds a node, device classes, slices, the cluster's allocated claims and the claims to allocate, all
// as API objects. Each output line holds the verdict: the allocations, nothing found, a failure on this node only, or
// an error that would end the scheduling cycle. Features are those that Kubernetes 1.37 enables by default.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/dynamic-resource-allocation/structured/schedulerapi"
)

// filterTimeout is the scheduler's default limit per node.
const filterTimeout = 10 * time.Second

const maxLineBytes = 64 << 20

type world struct {
	Node            corev1.Node                 `json:"node"`
	Classes         []resourceapi.DeviceClass   `json:"classes"`
	Slices          []resourceapi.ResourceSlice `json:"slices"`
	AllocatedClaims []resourceapi.ResourceClaim `json:"allocatedClaims"`
	Claims          []resourceapi.ResourceClaim `json:"claims"`
}

type verdict struct {
	Allocations  []resourceapi.AllocationResult `json:"allocations,omitempty"`
	FailedOnNode string                         `json:"failedOnNode,omitempty"`
	Error        string                         `json:"error,omitempty"`
}

type classLister map[string]*resourceapi.DeviceClass

func (l classLister) List() ([]*resourceapi.DeviceClass, error) {
	classes := make([]*resourceapi.DeviceClass, 0, len(l))
	for _, class := range l {
		classes = append(classes, class)
	}
	return classes, nil
}

func (l classLister) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := l[name]; ok {
		return class, nil
	}
	return nil, errors.New("it does not exist")
}

var features = structured.Features{
	AdminAccess:             true,
	ConsumableCapacity:      true,
	DeviceBindingAndStatus:  true,
	DeviceTaints:            true,
	FractionalCapacityRange: true,
	PartitionableDevices:    true,
	PrioritizedList:         true,
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	celCache := cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 0, 1<<20), maxLineBytes)
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for number := 1; lines.Scan(); number++ {
		var w world
		if err := json.Unmarshal(lines.Bytes(), &w); err != nil {
			return fmt.Errorf("world in line %d: %w", number, err)
		}
		if err := encoder.Encode(judge(&w, celCache)); err != nil {
			return fmt.Errorf("verdict for line %d: %w", number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading worlds: %w", err)
	}
	return out.Flush()
}

func judge(w *world, celCache *cel.Cache) verdict {
	ctx, cancel := context.WithTimeout(context.Background(), filterTimeout)
	defer cancel()
	classes := make(classLister, len(w.Classes))
	for i := range w.Classes {
		classes[w.Classes[i].Name] = &w.Classes[i]
	}
	slices := make([]*resourceapi.ResourceSlice, len(w.Slices))
	for i := range w.Slices {
		slices[i] = &w.Slices[i]
	}
	claims := make([]*resourceapi.ResourceClaim, len(w.Claims))
	for i := range w.Claims {
		setDefaults(&w.Claims[i])
		claims[i] = &w.Claims[i]
	}
	allocator, err := structured.NewAllocator(ctx, features, allocatedState(w.AllocatedClaims), classes, slices, celCache)
	if err != nil {
		return verdict{Error: err.Error()}
	}
	allocations, err := allocator.Allocate(ctx, &w.Node, claims)
	switch {
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return verdict{FailedOnNode: err.Error()}
	case err != nil:
		return verdict{Error: err.Error()}
	default:
		return verdict{Allocations: allocations}
	}
}

// allocatedState says what the claims hold, by the rules of the scheduler's plugin: admin access holds nothing, a
// result with a share ID is a share.
func allocatedState(claims []resourceapi.ResourceClaim) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[schedulerapi.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[schedulerapi.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			device := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			switch {
			case result.AdminAccess != nil && *result.AdminAccess:
			case result.ShareID == nil:
				state.AllocatedDevices.Insert(device)
			default:
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, result.ShareID))
				if result.ConsumedCapacity != nil {
					state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, result.ConsumedCapacity))
				}
			}
		}
	}
	return state
}

// setDefaults fills in what the API server would.
func setDefaults(claim *resourceapi.ResourceClaim) {
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		if exactly := request.Exactly; exactly != nil {
			setRequestDefaults(&exactly.AllocationMode, &exactly.Count, exactly.Tolerations)
		}
		for j := range request.FirstAvailable {
			alternative := &request.FirstAvailable[j]
			setRequestDefaults(&alternative.AllocationMode, &alternative.Count, alternative.Tolerations)
		}
	}
}

func setRequestDefaults(mode *resourceapi.DeviceAllocationMode, count *int64, tolerations []resourceapi.DeviceToleration) {
	if *mode == "" {
		*mode = resourceapi.DeviceAllocationModeExactCount
	}
	if *mode == resourceapi.DeviceAllocationModeExactCount && *count == 0 {
		*count = 1
	}
	for i := range tolerations {
		if tolerations[i].Operator == "" {
			tolerations[i].Operator = resourceapi.DeviceTolerationOpEqual
		}
	}
}
